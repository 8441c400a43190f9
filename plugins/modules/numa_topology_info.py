#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_topology_info
short_description: Read the NUMA topology of a host
version_added: 0.1.0
description:
  - Returns what the kernel shows of sockets, NUMA nodes, CPUs, SMT siblings, level 3 caches, distances,
    memory, huge page pools
    and virtualization, as sets, with a warning for each contradiction between its sources.
  - Node ids may be sparse; a node may have no CPUs or no memory; a kernel without NUMA reads as one node 0.
  - It judges a number of nodes when O(expect_nodes) is given; it never fails because of what a host shows.
author:
  - First Touch contributors (@firsttouch)
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  sysroot:
    description:
      - Directory that holds the C(/proc) and C(/sys) to read. Anything but C(/) is a recorded host or an
        offline tree.
    type: path
    default: /
  numactl:
    description:
      - Output of C(numactl -H), used as the source of the topology instead of C(/sys), for hosts of which
        only this text is known.
    type: str
  lscpu:
    description:
      - Output of C(lscpu) or C(lscpu -J) in the C locale, used like O(numactl). It holds no memory sizes and no
        distances.
    type: str
  cross_check:
    description:
      - Compare O(numactl) and O(lscpu) with C(/sys) below O(sysroot), which then is the source, and warn of
        each difference.
      - The default is V(true) when O(sysroot) is not C(/) and holds a C(/sys/devices/system/cpu), else
        V(false).
    type: bool
  facts:
    description:
      - Facts of the host that were gathered elsewhere; C(virtualization_role) and C(virtualization_type)
        count as evidence.
        Names may begin with C(ansible_).
    type: dict
    default: {}
  expect_nodes:
    description:
      - Number of NUMA nodes that the host should have, counted as O(count) says.
    type: int
  count:
    description:
      - Which nodes O(expect_nodes) counts, all that are online, those with CPUs, or those with memory.
    type: str
    choices: [online, cpu_nodes, memory_nodes]
    default: online
  require_distances:
    description:
      - Also judge whether the distances can be a real table, that is, neither missing, flat on a guest, nor
        as near as the own node.
    type: bool
    default: false
  isolated_cpus:
    description:
      - CPU list to count per node, in the kernel's notation (C(2-7,9), C(4-N)).
    type: str
  even_split:
    description:
      - Number of huge pages to split evenly over the nodes that can hold them, as the kernel would.
    type: int
seealso:
  - module: firsttouch.host.hugepages_info
  - module: firsttouch.host.host_plan
"""

EXAMPLES = r"""
- name: Read the topology
  firsttouch.host.numa_topology_info:
  register: numa

- name: Require two nodes with memory
  firsttouch.host.numa_topology_info:
    expect_nodes: 2
    count: memory_nodes
  register: numa
  failed_when: numa.verdict != 'pass'

- name: Read a recorded host
  firsttouch.host.numa_topology_info:
    sysroot: /srv/recorded/host-17
"""

RETURN = r"""
topology:
  description: The topology; the same document that the plan is computed from.
  returned: success
  type: dict
  contains:
    source:
      description: V(sysfs), V(no_numa) when the kernel shows no nodes, V(numactl) or V(lscpu) when a text was
        read, V(unknown) when the folder of the nodes cannot be read or is not in the sosreport.
      type: str
    arch:
      description: Machine name, V(null) where nothing tells.
      type: str
    kernel_release:
      description: Kernel release.
      type: str
    cpus:
      description:
        - CPU lists C(online), C(offline), C(possible), C(present), C(isolated), C(nohz_full) in the kernel's
          notation, C(boot_cpu) (the
          first online one), C(siblings) per CPU, and the C(packages) with their CPUs and cores.
        - C(sockets), C(cores), C(cores_per_socket) and C(threads_per_core) are V(null) where the kernel does
          not say, the last two also
          where they are not the same everywhere.
      type: dict
    nodes:
      description:
        - The online nodes in ascending order, each with C(id), C(cpus) (the online ones), C(memory_bytes),
          C(has_memory), C(normal_memory),
          C(pools) per page size and C(distances) per online node. V(null) is not known.
      type: list
      elements: dict
    node_lists:
      description:
        - Node ids that are C(online), C(possible), C(offline), and the online ones with CPUs (C(cpu)), with
          C(memory), with C(normal_memory),
          with memory for huge pages (C(hugepage)), with neither CPUs nor memory (C(empty)).
      type: dict
    l3:
      description: CPUs of each level 3 cache.
      type: list
      elements: dict
    page_size_bytes:
      description: Base page size.
      type: int
    hugepage_sizes_kb:
      description: Huge page sizes that the running kernel offers.
      type: list
      elements: int
    default_hugepage_kb:
      description: Default huge page size.
      type: int
    memory_bytes:
      description: Memory of the host.
      type: int
    virtualization:
      description: Name of the C(hypervisor) (V(unknown) for one without a name), whether it is C(bare_metal)
        (V(null) where nothing tells), C(evidence).
      type: dict
    warnings:
      description: Contradictions and unreadable files, each with C(reason) and C(text).
      type: list
      elements: dict
node_count:
  description: Number of nodes under each policy of O(count). C(memory_nodes) is V(null) where the memory of a
    node is not known.
  returned: success
  type: dict
  sample: {"online": 2, "cpu_nodes": 2, "memory_nodes": 2}
nodes_per_socket:
  description: Nodes with CPUs in each socket, V(null) where it differs or is not known.
  returned: success
  type: int
nearest_memory:
  description: Per node without memory the nearest node with memory, ties to the lowest id; a node with memory
    is its own.
  returned: success
  type: dict
nearest_normal_memory:
  description: The same among the nodes with normal memory, the ones that kernel and huge page pools can use.
  returned: success
  type: dict
isolated_by_node:
  description: Number of CPUs of O(isolated_cpus) on each node.
  returned: when O(isolated_cpus) is given
  type: dict
isolated_not_online:
  description: CPUs of O(isolated_cpus) that are not online.
  returned: when O(isolated_cpus) is given
  type: str
even_split:
  description: Pages per node, the remainder on the lowest ids.
  returned: when O(even_split) is given
  type: dict
verdict:
  description: V(pass), V(fail), or V(not_evaluated) when nothing was expected or the kernel does not tell.
  returned: success
  type: str
reason:
  description:
    - Why it is not V(pass). V(no_numa), V(snc_suspected), V(node_count), V(memory_not_known),
      V(flat_distances), V(distances_identical),
      V(distances_not_known), V(no_sysfs), V(nodes_unknown), V(nothing_expected).
  returned: when RV(verdict) is not V(pass)
  type: str
message:
  description: The verdict in words, with the policy and the numbers.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._cpulist import CpuListError, format_list
from ansible_collections.firsttouch.host.plugins.module_utils._topology import even_split, read_topology
from ansible_collections.firsttouch.host.plugins.module_utils._topology_judge import (
    isolated_by_node,
    judge_expectation,
    node_count,
    nodes_per_socket,
)
from ansible_collections.firsttouch.host.plugins.module_utils._topology_text import (
    TextError,
    from_texts,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysroot": {"type": "path", "default": "/"},
            "numactl": {"type": "str"},
            "lscpu": {"type": "str"},
            "cross_check": {"type": "bool"},
            "facts": {"type": "dict", "default": {}},
            "expect_nodes": {"type": "int"},
            "count": {"type": "str", "choices": ["online", "cpu_nodes", "memory_nodes"], "default": "online"},
            "require_distances": {"type": "bool", "default": False},
            "isolated_cpus": {"type": "str"},
            "even_split": {"type": "int"},
        },
        supports_check_mode=True,
    )
    args = module.params
    try:
        texts = {name: args[name] for name in ("numactl", "lscpu") if args[name] is not None}
        topology = from_texts(texts, args["sysroot"], args["cross_check"], args["facts"]) if texts else None
        topology = topology or read_topology(args["sysroot"], args["facts"])
        result = {
            "topology": topology.as_dict(),
            "node_count": node_count(topology),
            "nodes_per_socket": nodes_per_socket(topology),
            "nearest_memory": _nearest(topology, "memory"),
            "nearest_normal_memory": _nearest(topology, "normal_memory"),
            **judge_expectation(topology, args["expect_nodes"], args["count"], args["require_distances"]),
        }
        if args["isolated_cpus"] is not None:
            counts, missing = isolated_by_node(topology, args["isolated_cpus"])
            result["isolated_by_node"] = {str(node): number for node, number in counts.items()}
            result["isolated_not_online"] = format_list(missing)
        if args["even_split"] is not None:
            split = even_split(args["even_split"], topology.ids("hugepage"))
            result["even_split"] = {str(node): pages for node, pages in split.items()}
    except (CpuListError, TextError) as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    except ValueError as exc:
        module.fail_json(msg=str(exc), reason="invalid_value")
    module.exit_json(changed=False, **result)


def _nearest(topology, kind):
    among = topology.ids(kind)
    return {str(node.id): topology.nearest(node.id, among) for node in topology.nodes}


if __name__ == "__main__":
    main()
