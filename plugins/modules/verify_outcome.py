#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_outcome
short_description: End a verification with what became of a host
version_added: 0.1.0
description:
  - Runs on the controller only; the host is not contacted.
  - Makes a host count as unreachable or as failed after the reports of the whole fleet are written, so that the exit
    code of C(ansible-playbook) tells it.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  unreachable:
    description:
      - Why the host could not be reached; empty when it could.
    type: str
    default: ""
  failed:
    description:
      - Why the host counts as failed; empty when it does not.
    type: str
    default: ""
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Count the hosts that could not be reached
  firsttouch.host.verify_outcome:
    unreachable: "{{ report.unreachable_hosts[inventory_hostname] | default('') }}"
"""

RETURN = r"""#"""
