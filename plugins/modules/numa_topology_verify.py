#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_topology_verify
short_description: Verify the NUMA topology of a host and judge whether it is real
version_added: 0.1.0
description:
  - Holds what is expected of nodes, CPUs, memory, distances, sockets and threads against what the kernel
    shows.
  - Judges whether the topology that the kernel shows exists, with every piece of evidence, where it was
    seen and which way it points. Hypervisor, nodes against sockets and level 3 caches, distances, memory
    per node, devices, firmware tables, and the CPUs of a guest against the cores of a socket.
  - Reads only. Absent, unreadable, not evaluated and wrong are four different answers.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  expected:
    description:
      - What is expected, as in O(firsttouch.host._plan#role:main:firsttouch_numa).
      - C(nodes), their number or their ids; C(cpus), per node a CPU list or a number; C(memory), per node
        the installed bytes, plain or like V(64G), of which the kernel may show a tenth or 256 MiB less;
        C(distances), per node, or the rows of the matrix; C(smt), V(true), V(false) or the threads of a
        core; C(sockets); C(cores_per_socket) of the physical machine, for a guest the size of a socket
        below it; C(trust), V(asserted) when the operator vouches for the topology.
    type: dict
    default: {}
  accept:
    description:
      - The verdicts that are good enough. Any when empty.
    type: list
    elements: str
    choices: [exposed, consistent, hidden, contradictory, unknown]
    default: []
  measured:
    description:
      - A measurement of memory latency, as M(firsttouch.host.numa_placement_verify) makes it. Only with one
        of at least 1.2 a guest is V(exposed) without the word of the operator.
    type: dict
    suboptions:
      ratio:
        description: Latency of remote memory over that of local memory.
        type: float
        required: true
      source:
        description: Who measured.
        type: str
        default: measured
  facts:
    description:
      - Facts of the host that were gathered elsewhere; C(virtualization_role) and C(virtualization_type)
        count as evidence. Names may begin with C(ansible_).
    type: dict
    default: {}
  transport_policy:
    description:
      - How the transport that follows is chosen, as in
        O(firsttouch.host._plan#role:main:firsttouch_transport_policy).
    type: str
    choices: [topology, fastest]
    default: topology
  latency_target_us:
    description:
      - Microseconds that a message between two processes may take.
    type: int
    default: 100
  fail:
    description:
      - Whether the module fails when a result is V(fail), or something that was expected could not be looked at.
    type: bool
    default: false
  sysroot:
    description:
      - Directory below which the host's files are read, for a recorded host.
    type: path
    default: /
seealso:
  - module: firsttouch.host.numa_topology_info
  - module: firsttouch.host.numa_placement_verify
  - module: firsttouch.host.host_verify
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Ask whether the topology is real
  firsttouch.host.numa_topology_verify:
  register: numa

- name: Show why
  ansible.builtin.debug:
    msg: "{{ numa.verdict }}: {{ numa.words }}"

- name: Stop where a guest is not what it should be
  firsttouch.host.numa_topology_verify:
    expected:
      nodes: 2
      cpus: {0: 0-43, 1: 44-87}
      distances: [[10, 21], [21, 10]]
      cores_per_socket: 84
    accept: [exposed, consistent]
    fail: true
"""

RETURN = r"""
verdict:
  description:
    - V(exposed) for bare metal whose sources agree, for a guest whose sources agree and whose remote memory
      measures as remote, and where the operator vouches.
    - V(consistent) for a guest whose sources agree. V(hidden) where nodes are not shown. V(contradictory)
      where two sources cannot both be right. V(unknown) where the evidence carries none of these.
  type: str
  returned: always
  sample: hidden
words:
  description: The rule that decided, in words.
  type: str
  returned: always
asserted_by:
  description: Who vouches for the topology, when that decided.
  type: str
  returned: always
evidence:
  description: Every piece of evidence.
  type: list
  elements: dict
  returned: always
  contains:
    source:
      description: The file, or who says so.
      type: str
      sample: /sys/firmware/acpi/tables
    seen:
      description: What was seen.
      type: str
    points:
      description: V(guest), V(bare_metal), one of the verdicts, or V(nothing) where it fits all of them.
      type: str
co_scheduling:
  description:
    - Whether a guest has more CPUs in a node or socket than a socket of its machine has cores, so that the
      hypervisor cannot run them all at once. C(risk) is V(null) where that is not known.
  type: dict
  returned: always
signs:
  description: What was read besides the topology, such as the CPU's model name and the firmware's tables.
  type: dict
  returned: always
transport:
  description: The transport that follows, C(shm) or C(unix), with the rule that decided and why.
  type: dict
  returned: always
results:
  description: The answers, as M(firsttouch.host.host_verify) returns them.
  type: list
  elements: dict
  returned: always
failures:
  description: Those of RV(results) that are V(fail).
  type: list
  elements: dict
  returned: always
summary:
  description: Number of results per status.
  type: dict
  returned: always
ok:
  description: Whether no result is V(fail) and everything that was expected could be looked at.
  type: bool
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._checks_numa import accepted, standing_results
from ansible_collections.firsttouch.host.plugins.module_utils._intent import IntentError
from ansible_collections.firsttouch.host.plugins.module_utils._numa_expect import read_expected
from ansible_collections.firsttouch.host.plugins.module_utils._plan_numa import memory_bindable, trust_of
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._transport_choice import POLICIES, choose
from ansible_collections.firsttouch.host.plugins.module_utils._trust import VERDICTS
from ansible_collections.firsttouch.host.plugins.module_utils._trust_signs import read_signs, signs_as_dict
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import failures_text, summary

MEASURED = {"ratio": {"type": "float", "required": True}, "source": {"type": "str", "default": "measured"}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "expected": {"type": "dict", "default": {}},
            "accept": {"type": "list", "elements": "str", "choices": list(VERDICTS), "default": []},
            "measured": {"type": "dict", "options": MEASURED},
            "facts": {"type": "dict", "default": {}},
            "transport_policy": {"type": "str", "choices": list(POLICIES), "default": POLICIES[0]},
            "latency_target_us": {"type": "int", "default": 100},
            "fail": {"type": "bool", "default": False},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not os.path.isdir(given["sysroot"]):
        module.fail_json(
            msg=f"sysroot: {given['sysroot']} is not a directory that can be looked into", reason="no_sysroot"
        )
    topology, signs = read_topology(given["sysroot"], given["facts"]), read_signs(given["sysroot"])
    try:
        expected = read_expected(given["expected"])
        trust = trust_of(expected, topology, signs, given["measured"])
    except IntentError as exc:
        module.fail_json(msg=f"expected: {exc}", reason="bad_value")
    except ValueError as exc:
        module.fail_json(msg=str(exc), reason="bad_value")
    results = [*standing_results(expected, topology, trust), *accepted(given["accept"], trust)]
    choice = choose(
        trust.verdict,
        bindable=memory_bindable(topology),
        policy=given["transport_policy"],
        latency_target_us=given["latency_target_us"],
    )
    failures = [result for result in results if result.status == "fail"]
    unseen = [result for result in results if result.status == "not_evaluated" and result.intended]
    returned = {
        "changed": False,
        **trust.as_dict(),
        "signs": signs_as_dict(signs),
        "transport": choice.as_dict(),
        "results": [result.as_dict() for result in results],
        "failures": [result.as_dict() for result in failures],
        "summary": summary(results),
        "ok": not failures and not unseen,
    }
    if given["fail"] and not returned["ok"]:
        module.fail_json(msg=failures_text([*failures, *unseen]), reason="verification_failed", **returned)
    module.exit_json(**returned)


if __name__ == "__main__":
    main()
