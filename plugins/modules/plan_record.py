#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_record
short_description: Record the plan and the values first found
version_added: 0.1.0
description:
  - Merges sections of a plan into C(/etc/firsttouch/plan.json), the record of what is ours on the host.
  - Saves the value that each sysctl and pool of the plan had before it was ours in
    C(/var/lib/firsttouch/before.json), once.
  - Must run before anything of the plan is applied.
attributes:
  check_mode:
    support: full
    description: Writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows both files before and after.
  idempotent:
    support: full
    description: Figures that differ from boot to boot and decide nothing do not count as a change.
options:
  plan:
    description:
      - The plan that M(firsttouch.host.host_plan) returned. Required for O(state=present).
    type: dict
  sections:
    description:
      - The sections of O(plan) to record; the others stay as recorded. All of them when omitted.
    type: list
    elements: str
    choices: [hugepages, vm_sysctls, cpu_isolation, rt_scheduling, thp, services, runtime, kubelet]
  before:
    description:
      - Sysctls and the values to record as first found, for keys that have none yet. Live values are read when omitted.
    type: dict
    suboptions:
      sysctl:
        description: Dotted key to value.
        type: dict
        default: {}
  state:
    description:
      - V(absent) removes both files, and their directories where these are empty then.
    type: str
    choices: [present, absent]
    default: present
  predicted:
    description:
      - The changes that a run in check mode predicts before it comes to O(state=absent), such as RV(changes) of an
        earlier task. What they leave is what is removed then. Means nothing outside of check mode.
    type: list
    elements: dict
    default: []
  sysroot:
    description:
      - Directory below which the host's files are read and written.
    type: path
    default: /
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Record the plan before it is applied
  firsttouch.host.plan_record:
    plan: "{{ result.plan }}"
    sections: "{{ result.planned }}"

- name: Remove the record of a reverted host
  firsttouch.host.plan_record:
    state: absent
"""

RETURN = r"""
before:
  description: The values first found, the document of C(/var/lib/firsttouch/before.json).
  type: dict
  returned: success
plan:
  description: The record after the change, the document of C(/etc/firsttouch/plan.json).
  type: dict
  returned: success
groups_unused:
  description: Groups that were not there before us and that nobody is in now, for a revert to remove.
  type: list
  elements: str
  returned: success
  sample: [firsttouch]
changes:
  description: What was changed, or would be in check mode.
  type: list
  elements: dict
  returned: success
  contains:
    resource:
      description: The file.
      type: str
      sample: file:/etc/firsttouch/plan.json
    before:
      description: SHA-256 of its content before, null when it was absent.
      type: str
    after:
      description: SHA-256 of its content after, null when it is absent.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _state
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal
from ansible_collections.firsttouch.host.plugins.module_utils._intent import SECTIONS
from ansible_collections.firsttouch.host.plugins.module_utils._record import StateError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict"},
            "sections": {"type": "list", "elements": "str", "choices": list(SECTIONS)},
            "before": {"type": "dict", "options": {"sysctl": {"type": "dict", "default": {}}}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "predicted": {"type": "list", "elements": "dict", "default": []},
            "sysroot": {"type": "path", "default": "/"},
        },
        required_if=[("state", "present", ("plan",))],
        supports_check_mode=True,
    )
    given = module.params
    root = given["sysroot"]
    try:
        check_root(root)
        if given["state"] == "absent":
            record = _state.removal(root, given["predicted"] if module.check_mode else ())
        else:
            sections = given["sections"] if given["sections"] is not None else list(SECTIONS)
            found = (given["before"] or {}).get("sysctl") or {}
            record = _state.recording(root, given["plan"], sections, found)
        if not module.check_mode:
            record.apply()
    except StateError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    except OSError as exc:
        module.fail_json(**{**refusal(exc, ""), "reason": "record_not_written"})
    module.exit_json(
        changed=bool(record.changes),
        changes=record.changes,
        diff=record.diff,
        plan=record.plan,
        before=record.before,
        groups_unused=_state.groups_unused(record.before, root),
    )


if __name__ == "__main__":
    main()
