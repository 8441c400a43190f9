# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Attributes that several modules share. Private to this collection."""

from __future__ import annotations


class ModuleDocFragment:
    """`_attributes.reads_only`: for modules that never change anything."""

    READS_ONLY = r"""
attributes:
  check_mode:
    support: full
    description: Changes nothing in either mode.
  diff_mode:
    support: none
    description: There is nothing to compare.
  idempotent:
    support: full
    description: Changes nothing.
"""
