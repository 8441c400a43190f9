#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hugepages_info
short_description: Read the huge page pools and mounts of a host, and judge them
version_added: 0.1.0
description:
  - Returns the huge page pools of the running kernel, whole and per NUMA node, the hugetlbfs mounts, and how
    much room for pages
    there is.
  - With O(pools) it compares them with what was asked for, page for page, and names the cause of each
    difference. It never
    fails because of what a host shows.
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
  pools:
    description:
      - Pools that the host should have. Entries of one size add up.
      - Without O(pools[].node) and O(pools[].nodes) only the total is judged, since the kernel may place the
        pages as it likes.
    type: list
    elements: dict
    suboptions:
      size:
        description: Page size, such as V(2M), V(1G), V(2048kB).
        type: str
        required: true
      count:
        description: Number of pages.
        type: int
      bytes:
        description: Size of the pool in bytes, instead of O(pools[].count).
        type: int
      node:
        description: The node that the pages should be on.
        type: int
      nodes:
        description:
          - V(all) or a list of node ids, for an even split over them, the remainder on the lowest ids; or a
            mapping of node id to
            number of pages.
        type: raw
  mount:
    description:
      - Also judge whether a hugetlbfs of each size in O(pools) is mounted.
    type: bool
    default: false
  stale_files:
    description:
      - Also look for files on the hugetlbfs mounts that keep pages although nobody has them open or mapped.
      - Reads C(maps) and C(fd) of every process, so run it as root. Nothing is deleted.
    type: bool
    default: false
  file_patterns:
    description:
      - How files of ours are named, literally but for C({pid}), the process that owns one, C({boot_id}) and
        C({starttime}). The default is what the runtime's loader leaves behind when it is killed.
    type: list
    elements: str
    default: [".tmp.{boot_id}.{pid}.{starttime}"]
  need:
    description:
      - Also judge whether a process in the control group of this one can use so many bytes of pages, before it
        is killed for trying.
    type: dict
    suboptions:
      size:
        description: Page size, such as V(2M).
        type: str
        required: true
      bytes:
        description: Bytes that it is going to touch.
        type: int
        required: true
seealso:
  - module: firsttouch.host.numa_topology_info
  - module: firsttouch.host.kernel_cmdline_info
"""

EXAMPLES = r"""
- name: Read pools and mounts
  firsttouch.host.hugepages_info:
  register: huge

- name: Judge an uneven split
  firsttouch.host.hugepages_info:
    pools:
      - size: 2M
        nodes: {0: 300, 1: 200}
      - size: 1G
        node: 1
        count: 2
    mount: true
  register: huge
  failed_when: huge.verdict != 'pass'
"""

RETURN = r"""
pools:
  description:
    - Per page size the pages C(total), C(surplus), C(persistent) (total less surplus), C(free), C(reserved),
      C(available) (free
      less reserved), C(overcommit), and C(nodes) with the same of each node. V(null) is not readable.
  returned: success
  type: dict
  sample:
    2048kB:
      size_kb: 2048
      total: 500
      surplus: 0
      persistent: 500
      free: 500
      reserved: 0
      available: 500
      overcommit: 0
      nodes: {"0": {"total": 300, "free": 300, "surplus": 0, "persistent": 300}}
default_size_kb:
  description: The default huge page size, which C(vm.nr_hugepages) and mounts without a size have.
  returned: success
  type: int
mounts:
  description:
    - The hugetlbfs mounts, with C(path), C(page_size), C(size) and C(min_size) in bytes, C(uid), C(gid),
      C(mode), C(options), C(covered) (another
      filesystem is mounted over it), C(problem) (an option that is not understood).
  returned: success
  type: list
  elements: dict
aligned_slots:
  description:
    - Per gigantic page size and node, how many aligned windows of the node are memory throughout (C(total))
      and how many of those the
      kernel, its crash kernel or firmware occupy now (C(occupied)). Absent where C(/proc/iomem) is not
      readable.
  returned: success
  type: dict
free_blocks:
  description: Per smaller page size and node, blocks of that size that are free right now.
  returned: success
  type: dict
cpu_has_pdpe1gb:
  description: Whether an x86 CPU has the flag for 1 GiB pages, V(null) elsewhere. The kernel may still not
    offer them.
  returned: success
  type: bool
results:
  description:
    - One row per size in O(pools), then one with status V(not_requested) per other size, with C(asked),
      C(got) (persistent pages), C(total), C(surplus),
      C(total_matches), C(nodes) (asked and got), C(even_split) (how the kernel would spread what was asked),
      C(status), C(reason), C(text).
  returned: success
  type: list
  elements: dict
mount_results:
  description: One row per size in O(pools) with C(status), C(paths), C(reason), C(text).
  returned: when O(mount) is true
  type: list
  elements: dict
stale_files:
  description:
    - The files that hold pages, in C(reclaimable) (named by O(file_patterns), their process has ended and
      nobody holds them), C(kept) (named so, but in use, or nobody can tell) and C(foreign) (of others, whether
      used or not). Each with C(path), C(bytes), C(pages), C(uid), C(held) (whether some process has it open or
      mapped).
    - C(reclaimable_pages) per page size; C(not_evaluated) the paths that could not be read, with the reason.
  returned: when O(stale_files) is true
  type: dict
  sample:
    reclaimable: [{path: /dev/hugepages/x.4242, bytes: 1073741824, pages: 512, uid: 0, held: false}]
    reclaimable_pages: {2048kB: 512}
    kept: []
    foreign: []
    not_evaluated: {}
need:
  description:
    - C(verdict), C(reason) (V(hugetlb_cgroup_limit), V(pool_short), V(not_available)), C(text), C(need_bytes),
      C(limit_bytes) and C(file) of the limit that leaves least, V(null) where there is none,
      C(available_bytes) of the pool.
  returned: when O(need) is given
  type: dict
verdict:
  description: V(pass), V(fail), or V(not_evaluated) when nothing was requested or a counter is not readable.
  returned: success
  type: str
reason:
  description:
    - Why it is not V(pass). V(allocation_short), V(more_than_asked), V(wrong_node), V(surplus_counted),
      V(pool_directory_missing), V(no_such_node),
      V(node_without_memory), V(node_without_normal_memory), V(no_mount_for_size), V(not_on_command_line),
      V(command_line_differs), the
      reason of a warning of M(firsttouch.host.kernel_cmdline_info) that explains it
      (V(repeated_hugepages_ignored), V(after_double_dash)),
      V(unreadable), V(memory_not_known), V(nothing_requested).
  returned: when RV(verdict) is not V(pass)
  type: str
message:
  description: The verdict in words.
  returned: success
  type: str
warnings_found:
  description: Contradictions between counters and unreadable files, each with C(reason) and C(text).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._hugepages import survey
from ansible_collections.firsttouch.host.plugins.module_utils._hugepages_judge import (
    explain,
    judge,
    judge_mounts,
    parse_wanted,
    summary,
)
from ansible_collections.firsttouch.host.plugins.module_utils._hugetlb_cgroup import preflight
from ansible_collections.firsttouch.host.plugins.module_utils._hugetlb_files import PATTERNS, stale_report
from ansible_collections.firsttouch.host.plugins.module_utils._intent import page_size_kb


def _extra(root, params):
    """What is only looked at when it is asked for. Raises ValueError."""
    found = {}
    if params["stale_files"]:
        found["stale_files"] = stale_report(root, params["file_patterns"])
    if params["need"]:
        need = params["need"]
        found["need"] = preflight(root, page_size_kb(need["size"]), need["bytes"])
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysroot": {"type": "path", "default": "/"},
            "pools": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "size": {"type": "str", "required": True},
                    "count": {"type": "int"},
                    "bytes": {"type": "int"},
                    "node": {"type": "int"},
                    "nodes": {"type": "raw"},
                },
            },
            "mount": {"type": "bool", "default": False},
            "stale_files": {"type": "bool", "default": False},
            "need": {
                "type": "dict",
                "options": {
                    "size": {"type": "str", "required": True},
                    "bytes": {"type": "int", "required": True},
                },
            },
            "file_patterns": {"type": "list", "elements": "str", "default": list(PATTERNS)},
        },
        supports_check_mode=True,
    )
    root = module.params["sysroot"]
    found = survey(root)
    try:
        context = explain(root, found["pools"])
        wants = parse_wanted(module.params["pools"] or [], context.hugepage_nodes())
        extra = _extra(root, module.params)
    except ValueError as exc:
        module.fail_json(msg=str(exc), reason="invalid_value")
    rows = judge(wants, found["pools"], context)
    result = {**found, "cpu_has_pdpe1gb": context.cpu_has_1g, "results": rows}
    result.update(extra)
    if module.params["mount"]:
        result["mount_results"] = judge_mounts(wants, found["mounts"])
        rows = rows + result["mount_results"]
    module.exit_json(changed=False, **result, **summary(rows))


if __name__ == "__main__":
    main()
