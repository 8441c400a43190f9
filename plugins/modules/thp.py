#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: thp
short_description: Set the modes of transparent huge pages, now and at boot
version_added: 0.1.0
description:
  - Sets the modes in the running kernel, reads each back, and writes those that no boot argument sets into one file of
    C(tmpfiles.d) that is ours.
  - All or nothing. A mode that the running kernel does not offer is an error that changes nothing.
  - RV(ignore:enabled) comes at boot from C(transparent_hugepage=), which M(firsttouch.host.kernel_cmdline) writes.
attributes:
  check_mode:
    support: full
    description: Writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows the file, and the modes of the running kernel.
  idempotent:
    support: full
    description: File and modes are changed only where they differ.
  platform:
    platforms: linux
    support: full
    description: Linux with systemd-tmpfiles.
options:
  values:
    description:
      - The modes to have, by the name of their file in C(/sys/kernel/mm/transparent_hugepage).
      - An empty dictionary removes what is ours.
    type: dict
    default: {}
    suboptions:
      enabled:
        description: Where huge pages are used.
        type: str
        choices: [always, madvise, never]
      defrag:
        description: Where a page fault may wait for memory to be compacted.
        type: str
        choices: [always, defer, defer+madvise, madvise, never]
      shmem_enabled:
        description: Where huge pages are used in shared memory.
        type: str
        choices: [always, within_size, advise, never, deny, force]
  restore:
    description: The modes to put back for what was ours and is not in O(values) any more.
    type: dict
    default: {}
  sysroot:
    description: Directory of the tree to change. Below another one than C(/) only the file is written.
    type: path
    default: /
seealso:
  - module: firsttouch.host.kernel_cmdline
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Use huge pages only where they are asked for
  firsttouch.host.thp:
    values:
      enabled: madvise
      defrag: defer+madvise

- name: Take our modes away and put the old one back
  firsttouch.host.thp:
    restore:
      enabled: always
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "thp:enabled", before: always, after: madvise}]
not_restored:
  description: Modes that are no longer ours and stay until the next boot, as nothing is known to put back.
  returned: success
  type: list
  elements: str
  sample: []
reason:
  description: Why nothing was changed.
  returned: failure
  type: str
  sample: unsupported
file:
  description: The file that the failure is about.
  returned: failure
  type: str
  sample: /sys/kernel/mm/transparent_hugepage/defrag
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _thp
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal


def _diff(plan: _thp.Plan) -> list[dict[str, str]]:
    def lines(values: dict[str, str]) -> str:
        return "".join(f"{name} = {value}\n" for name, value in sorted(values.items()))

    rows = [
        (_thp.FILE, plan.before_text or "", plan.after_text or ""),
        (_thp.DIRECTORY, lines(plan.live), lines({**plan.live, **plan.writes})),
    ]
    return [
        {"before_header": where, "after_header": where, "before": before, "after": after}
        for where, before, after in rows
        if before != after
    ]


def _run(module: AnsibleModule) -> None:
    root = module.params["sysroot"]
    values = {name: value for name, value in module.params["values"].items() if value is not None}
    restore = {name: str(value) for name, value in module.params["restore"].items()}
    plan = _thp.make_plan(root, values, restore, live=os.path.realpath(root) == "/")
    if not module.check_mode:
        _thp.apply_plan(plan)
    module.exit_json(
        changed=bool(plan.changes), changes=plan.changes, diff=_diff(plan), not_restored=plan.not_restored
    )


def main() -> None:
    options = {name: {"type": "str", "choices": list(words)} for name, words in _thp.KNOWN.items()}
    module = AnsibleModule(
        argument_spec={
            "values": {"type": "dict", "default": {}, "options": options},
            "restore": {"type": "dict", "default": {}},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        check_root(module.params["sysroot"])
        _run(module)
    except _thp.ThpError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, file=exc.path)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))


if __name__ == "__main__":
    main()
