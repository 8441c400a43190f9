#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hugepages_release
short_description: Give back the huge pages of the reservation unit, without a boot
version_added: 0.1.0
description:
  - Looks at the reservation unit of ours that is on the host, C(firsttouch-hugepages.service), and brings the pools
    that it reserves and that are not asked for any more back to the number of pages first found.
  - Must run before that unit is replaced or removed, and after the mounts of the pages are gone.
  - Takes back free pages only. Pages that are in use, or promised to a mapping or a mount, stay until the next boot;
    RV(kept) and a warning name them.
attributes:
  check_mode:
    support: full
    description: >-
      Writes nothing; RV(changes) is what a run would return. Mounts of O(unmounting) that are in use, so that they
      cannot be unmounted, keep more pages than predicted.
  diff_mode:
    support: full
    description: Shows the pools.
  idempotent:
    support: full
    description: Pools that are as they should be are not written.
  platform:
    platforms: linux
    support: full
    description: Linux with systemd.
options:
  unit:
    description:
      - The text of the reservation unit that replaces the one on the host. What it asks for is left to it.
      - Leave out when there will be none.
    type: str
  pools:
    description:
      - The pools of the plan, which boot arguments may bring, as M(firsttouch.host.host_plan) returns them. Pages that
        they ask for are not given back.
    type: list
    elements: dict
    default: []
  before:
    description:
      - The pages first found, by size such as V(2048kB) and node, as M(firsttouch.host.plan_record) returns them in
        RV(firsttouch.host.plan_record#module:before).
      - A pool that is not in it is left alone, and named in RV(kept).
    type: dict
    default: {}
  unmounting:
    description:
      - Mount units of ours that are there in check mode only, because a real run has removed them before.
    type: list
    elements: str
    default: []
  sysroot:
    description: Directory below which the host's files are read and written.
    type: path
    default: /
seealso:
  - module: firsttouch.host.systemd_units
  - module: firsttouch.host.plan_record
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Give back what the reservation unit took
  firsttouch.host.hugepages_release:
    before: "{{ record.before.pools }}"

- name: Remove the reservation unit
  firsttouch.host.systemd_units:
    absent: [firsttouch-hugepages.service]
"""

RETURN = r"""
changes:
  description: The pools that were changed, or would be in check mode, sorted.
  type: list
  elements: dict
  returned: success
  contains:
    resource:
      description: Page size and node.
      type: str
      sample: 'pool:2048kB:node0'
    before:
      description: Pages before, surplus ones included.
      type: int
    after:
      description: Pages after.
      type: int
kept:
  description: What could not be given back.
  type: list
  elements: dict
  returned: success
  contains:
    size_kb:
      description: The page size in kB.
      type: int
    node:
      description: The NUMA node.
      type: int
    pages:
      description: The pages it has, V(null) when that is not readable.
      type: int
    wanted:
      description: The pages it should have, V(null) when that is not known.
      type: int
    text:
      description: One sentence with the reason.
      type: str
reason:
  description: Why it failed.
  type: str
  returned: failure
  sample: write_error
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _hugepages_release
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal


def _shown(rows: list[dict[str, object]], side: str) -> str:
    return "".join(f"{row['resource']} {row[side]}\n" for row in rows)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str"},
            "pools": {"type": "list", "elements": "dict", "default": []},
            "before": {"type": "dict", "default": {}},
            "unmounting": {"type": "list", "elements": "str", "default": []},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = given["sysroot"]
    leaving = given["unmounting"] if module.check_mode else []
    try:
        check_root(root)
        steps = _hugepages_release.plan_release(root, given["unit"], given["pools"], given["before"], leaving)
        if not module.check_mode:
            steps = _hugepages_release.apply_release(root, steps)
    except ValueError as exc:
        module.fail_json(msg=str(exc), reason="bad_value")
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))
    kept = [step for step in steps if step.why is not None]
    for step in kept:
        module.warn(step.text)
    rows = _hugepages_release.changes(steps)
    module.exit_json(
        changed=bool(rows),
        changes=rows,
        diff={"before": _shown(rows, "before"), "after": _shown(rows, "after")},
        kept=[
            {
                "size_kb": step.size_kb,
                "node": step.node,
                "pages": step.after,
                "wanted": step.wanted,
                "text": step.text,
            }
            for step in kept
        ],
    )


if __name__ == "__main__":
    main()
