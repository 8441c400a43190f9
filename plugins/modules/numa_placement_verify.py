#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_placement_verify
short_description: Prove that memory goes to the NUMA node it is bound to, and measure how far away it is
version_added: 0.1.0
description:
  - For each node with memory, binds a few pages to it, touches them and asks the kernel on which node they
    are, by C(move_pages) and by C(get_mempolicy). With ordinary pages, and with huge pages of each size
    that has pages to spare, from a CPU of each node.
  - Measures how long a load takes from the memory of each node, by loads that depend on each other and go
    to memory because the cache lines were flushed before.
  - All of it happens in a child process at low priority that is gone afterwards, at most 8 pages of a size
    and 2 seconds for each CPU. It takes 2 MiB of ordinary memory on each node, and never the last huge
    page.
  - A serving host is left alone, with the reason V(host_busy). This is while a user thread is on an
    isolated CPU, while a huge page pool has no page to spare, or while the load is high.
  - On a host whose topology is hidden the kernel's word about nodes proves nothing, and the result says so.
    What the kernel, a cpuset or a security policy refuses is V(not_evaluated) with the reason, never
    V(pass).
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  trust:
    description:
      - The verdict about the topology, as M(firsttouch.host.numa_topology_verify) returns it.
      - Left out, it is found here, with the measured latency.
    type: str
    choices: [exposed, consistent, hidden, contradictory, unknown]
  cpus:
    description:
      - From which CPUs to try. V(one_per_node) takes one housekeeping CPU of each node, an isolated one
        where there is no other.
      - V(all) takes each CPU that the affinity and the cpuset of Ansible on the host allow, and the
        isolated ones.
    type: str
    choices: [one_per_node, all]
    default: one_per_node
  gigantic_pages:
    description:
      - Whether to try a huge page of more than 64 MiB. The kernel fills it with zeros first, which takes
        some 0.2 s for 1 GiB.
    type: bool
    default: true
  seconds_per_cpu:
    description:
      - The most time to spend on one CPU, at most 2 seconds. What does not fit is V(not_evaluated).
    type: float
    default: 2.0
  max_load:
    description:
      - The load of one minute per CPU above which the host is busy. A load of 1.5 is never too high.
    type: float
    default: 0.8
  fail:
    description:
      - Whether the module fails when pages are not where they were bound to.
    type: bool
    default: false
notes:
  - Needs no compiler and nothing installed on the host. On x86_64 and aarch64; elsewhere V(not_evaluated).
  - Needs a Python with C(ctypes). The latency needs executable memory, which SELinux (C(execmem)) or a
    seccomp filter may forbid.
seealso:
  - module: firsttouch.host.host_verify
  - module: firsttouch.host.numa_topology_verify
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Prove placement from one CPU of each node
  firsttouch.host.numa_placement_verify:
  register: placement

- name: Show the latency between the nodes in ns
  ansible.builtin.debug:
    var: placement.latency.matrix

- name: Let the latency speak in the verdict about the nodes
  firsttouch.host.numa_topology_verify:
    measured: "{{ placement.evidence or omit }}"

- name: From every CPU, before the host serves for the first time
  firsttouch.host.numa_placement_verify:
    cpus: all
    fail: true
"""

RETURN = r"""
verdict:
  description:
    - V(pass) when all placements were tried and are right on a topology that exists as far as one can tell.
    - V(fail) when pages are on another node. V(incomplete) when something could not be tried or proves
      nothing.
  type: str
  returned: always
  sample: pass
reason:
  description:
    - Code of what keeps RV(verdict) from V(pass), such as V(host_busy), V(topology_hidden), V(wrong_node).
  type: str
  returned: when RV(verdict) is not V(pass)
message:
  description: The run in words, what it cannot prove first.
  type: str
  returned: always
trust:
  description: The verdict about the topology, given or found.
  type: str
  returned: always
  sample: consistent
proves:
  description: Whether where the kernel says pages are says anything about the machine.
  type: bool
  returned: always
proves_nothing_because:
  description: Why not; empty when it does.
  type: str
  returned: always
placements:
  description: One row for each CPU, node and page size that was tried.
  type: list
  elements: dict
  returned: always
  contains:
    cpu:
      description: The CPU that touched the pages.
      type: int
    cpu_node:
      description: Its node.
      type: int
    node:
      description: The node that the pages were bound to.
      type: int
    page_size:
      description: The page size.
      type: str
      sample: 2M
    page_size_kb:
      description: The page size in kB.
      type: int
    pages:
      description: Number of pages.
      type: int
    status:
      description: V(placed), V(wrong), V(not_evaluated) or V(error).
      type: str
    reason:
      description:
        - Code of the cause when it is not V(placed), such as V(sigbus), V(permission_denied), V(no_memory).
      type: str
    detail:
      description: The cause in words.
      type: str
    found:
      description: Pages per node, by each source that answered.
      type: dict
      returned: when pages could be touched
      sample: {move_pages: {"1": 8}, get_mempolicy: {"1": 8}}
    silent:
      description: The sources that did not answer, and what they said.
      type: dict
      returned: when pages could be touched
latency:
  description:
    - C(matrix) has the ns of one load by node of the CPU and node of the memory, C(rows) the same for each
      CPU with the median absolute deviation (C(mad)), the number of C(samples) and the ns of a load from
      the nearest cache, C(unmeasured) what could not be measured and why.
  type: dict
  returned: always
  sample:
    matrix: {"0": {"0": 92.4, "1": 141.0}, "1": {"0": 140.2, "1": 91.8}}
ratio:
  description:
    - Remote over local latency, the least over the CPUs, with the C(source) in words and the range from
      C(low) to C(high) that noise leaves.
    - C(problem) is V(latency_of_cache) when the loads did not reach memory, V(latency_noisy) when noise
      leaves both near and far.
    - V(null) with one node.
  type: dict
  returned: always
evidence:
  description:
    - RV(ratio) as C(measured) of M(firsttouch.host.numa_topology_verify) takes it, with C(ratio) and
      C(source). V(null) with one node, or when noise or a cache may have made the ratio.
  type: dict
  returned: always
left_out:
  description: What was not tried, with C(reason), C(detail) and the C(source) file.
  type: list
  elements: dict
  returned: always
results:
  description: The answers as M(firsttouch.host.host_verify) returns them.
  type: list
  elements: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._placement import measure
from ansible_collections.firsttouch.host.plugins.module_utils._placement_host import MAX_LOAD
from ansible_collections.firsttouch.host.plugins.module_utils._placement_report import (
    document,
    message,
    results,
)
from ansible_collections.firsttouch.host.plugins.module_utils._placement_run import SECONDS_PER_CPU
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._trust import VERDICTS, assess
from ansible_collections.firsttouch.host.plugins.module_utils._trust_signs import read_signs
from ansible_collections.firsttouch.host.plugins.module_utils._verdict import verdict


def main():
    module = AnsibleModule(
        argument_spec={
            "trust": {"type": "str", "choices": list(VERDICTS)},
            "cpus": {"type": "str", "choices": ["one_per_node", "all"], "default": "one_per_node"},
            "gigantic_pages": {"type": "bool", "default": True},
            "seconds_per_cpu": {"type": "float", "default": SECONDS_PER_CPU},
            "max_load": {"type": "float", "default": MAX_LOAD},
            "fail": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not 0 < given["seconds_per_cpu"] <= SECONDS_PER_CPU:
        text = f"seconds_per_cpu is {given['seconds_per_cpu']:g}, not above 0 and at most {SECONDS_PER_CPU:g}"
        module.fail_json(msg=text, reason="bad_value")
    topology, signs = read_topology("/"), read_signs("/")
    found = measure(
        lambda measured: given["trust"] or assess(topology, signs, measured=measured).verdict,
        topology=topology,
        every_cpu=given["cpus"] == "all",
        gigantic=given["gigantic_pages"],
        seconds_per_cpu=given["seconds_per_cpu"],
        max_load=given["max_load"],
    )
    answers = list(results(found, intended=True, required=True))
    returned = {
        "changed": False,
        "verdict": verdict(answers),
        "message": message(found),
        "results": [answer.as_dict() for answer in answers],
        **document(found),
    }
    if returned["verdict"] != "pass":
        returned["reason"] = _reason(answers)
    if given["fail"] and returned["verdict"] == "fail":
        module.fail_json(msg=returned["message"], **returned)
    module.exit_json(**returned)


def _reason(answers):
    """The reason of the worst answer."""
    order = ("error", "fail", "not_evaluated", "warn", "not_applicable", "pass")
    return min(answers, key=lambda answer: order.index(answer.status)).reason


if __name__ == "__main__":
    main()
