# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error that the command line reports without a traceback."""

from __future__ import annotations


class HostError(Exception):
    """Something outside this program is not as it needs it; the text says what, where and the remedy."""
