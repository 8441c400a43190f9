#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_check
short_description: Check variables, serial and hooks of a rollout before its first host
version_added: 0.1.0
description:
  - Runs on the controller only; the host is not contacted.
  - Fails when the inventory sets C(firsttouch_serial). The play reads its batch sizes before any host variable exists,
    so a value in the inventory would be ignored silently; only C(-e firsttouch_serial=...) has an effect.
  - Fails when the inventory has no hosts.
  - Fails when C(-e firsttouch_serial=...) is no batch size or list of them. Ansible would take V(0) for all hosts at
    once.
  - Fails when a host of the play has a variable with the prefix C(firsttouch_) that nothing reads, as a misspelt one,
    and names the nearest right name.
  - Resolves each hook that a host of the play has to an absolute path and fails when the file is missing or is no list
    of tasks.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  hooks:
    description:
      - Task files by the moment they run at, V(before), V(after) or V(failed). A relative path is looked for beside the
        inventory. An empty string stands for no hook. Those that hosts have as C(firsttouch_hook_before),
        C(firsttouch_hook_after) and C(firsttouch_hook_failed) are looked at in any case.
    type: dict
    default: {}
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Check the drain hook before the first host is touched
  firsttouch.host.rollout_check:
    hooks:
      before: hooks/drain.yml
      after: hooks/uncordon.yml
"""

RETURN = r"""
hooks:
  description: By the moment, the absolute path of each hook by its path as given; an empty string for none.
  type: dict
  returned: success
  sample:
    before: {"": "", hooks/drain.yml: /srv/inventory/hooks/drain.yml}
    after: {"": "", hooks/uncordon.yml: /srv/inventory/hooks/uncordon.yml}
    failed: {"": ""}
"""
