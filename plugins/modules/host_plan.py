#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_plan
short_description: Compute the plan of a host from intent and topology
version_added: 0.1.0
description:
  - Turns the C(firsttouch_*) values of an operator and the topology of the host into one document, the plan. Which
    pages on which node, which CPUs, which boot arguments, which sysctls is decided here and nowhere else.
  - What does not fit is refused with numbers, all of it at once, before anything is written.
  - Reads only; changes nothing.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  intent:
    description:
      - The C(firsttouch_*) values without their prefix, as described in the role P(firsttouch.host._plan#role).
      - A concern that is absent here or null is not managed. V(absent) or an empty list removes what is ours.
    type: dict
    default: {}
  sections:
    description:
      - The sections to plan; the others are taken from the record on the host. All of them when omitted.
    type: list
    elements: str
    choices: [hugepages, vm_sysctls, cpu_isolation, rt_scheduling, thp, services, runtime, kubelet]
  revert:
    description:
      - Plan every concern as absent, whatever O(intent) says.
    type: bool
    default: false
  topology:
    description:
      - The topology as M(firsttouch.host.numa_topology_info) returns it. Read from the host when omitted.
    type: dict
  push_bytes:
    description:
      - Bytes of the models that are pushed, by name, which are held against the pools. Given by the controller.
    type: dict
    default: {}
  kernel:
    description:
      - Plan for this kernel release alone instead of all installed kernels and the running one.
    type: str
  sysroot:
    description:
      - Directory below which the host's files are read.
    type: path
    default: /
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Plan 300 huge pages on node 0, 200 on node 1 and two isolated CPUs
  firsttouch.host.host_plan:
    intent:
      hugepages:
        - size: 2M
          nodes: {0: 300, 1: 200}
      isolated_cpus: 1,3
  register: result

- name: Show the boot arguments
  ansible.builtin.debug:
    var: result.plan.boot.tokens
"""

RETURN = r"""
plan:
  description: The plan, the document of C(/etc/firsttouch/plan.json).
  type: dict
  returned: success
planned:
  description: The sections planned now.
  type: list
  elements: str
  returned: success
  sample: [hugepages]
intent_given:
  description: O(intent) as given.
  type: dict
  returned: always
groups:
  description: The named groups that the hugetlbfs mounts need.
  type: list
  elements: str
  returned: success
  sample: [firsttouch]
units:
  description: The systemd units of managed variables, as O(firsttouch.host.systemd_units#module:units) takes them.
  type: list
  elements: dict
  returned: success
units_absent:
  description: Units of ours that the plan does not have any more.
  type: list
  elements: str
  returned: success
runtime:
  description: >-
    What the role P(firsttouch.host.runtime#role) does, with RV(ignore:state) (V(null) where it is not managed),
    RV(ignore:files), RV(ignore:units), RV(ignore:units_absent), RV(ignore:push) (paths on the controller by model) and
    RV(ignore:push_absent).
  type: dict
  returned: success
notes:
  description: Remarks that stop nothing, each with RV(ignore:reason), RV(ignore:variable) and RV(ignore:text).
  type: list
  elements: dict
  returned: always
refusals:
  description: Everything that was refused.
  type: list
  elements: dict
  returned: failure
  contains:
    reason:
      description: A code.
      type: str
      sample: pages_exceed_node
    variable:
      description: The variable to change.
      type: str
      sample: firsttouch_hugepages
    text:
      description: What is wrong, with numbers and remedy.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _plan_runtime
from ansible_collections.firsttouch.host.plugins.module_utils._intent import SECTIONS
from ansible_collections.firsttouch.host.plugins.module_utils._plan import facts_for, make_plan
from ansible_collections.firsttouch.host.plugins.module_utils._plan_document import named_groups, unit_rows
from ansible_collections.firsttouch.host.plugins.module_utils._record import StateError, read_plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "intent": {"type": "dict", "default": {}},
            "sections": {"type": "list", "elements": "str", "choices": list(SECTIONS)},
            "revert": {"type": "bool", "default": False},
            "topology": {"type": "dict"},
            "push_bytes": {"type": "dict", "default": {}},
            "kernel": {"type": "str"},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    intent = given["intent"]
    sections = (
        list(SECTIONS) if given["sections"] is None else [s for s in SECTIONS if s in given["sections"]]
    )
    try:
        recorded = read_plan(given["sysroot"])
    except StateError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    try:
        facts = facts_for(intent, given["sysroot"], given["topology"], given["kernel"])
    except (KeyError, TypeError, ValueError) as exc:
        module.fail_json(
            msg=f"topology is not a document of numa_topology_info: {exc!r}", reason="bad_topology"
        )
    result = make_plan(intent, facts, recorded, sections, given["revert"], given["push_bytes"])
    if result.refusals:
        rows = [refusal.as_dict() for refusal in result.refusals]
        module.fail_json(
            msg="; ".join(row["text"] for row in rows),
            reason=rows[0]["reason"],
            refusals=rows,
            notes=result.notes,
            intent_given=intent,
        )
    units, gone = unit_rows(result.plan, facts)
    module.exit_json(
        changed=False,
        plan=result.plan,
        planned=sections,
        intent_given=intent,
        groups=named_groups(result.plan),
        units=units,
        units_absent=gone,
        runtime=_plan_runtime.work(result.plan, intent),
        notes=result.notes,
    )


if __name__ == "__main__":
    main()
