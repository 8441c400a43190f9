#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: systemd_units
short_description: Bring a set of own systemd units to their state in one call
version_added: 0.1.0
description:
  - Writes, enables, starts, stops and removes units in C(/etc/systemd/system), with at most one daemon-reload.
  - Replaces and removes only unit files that it wrote itself (their first line says so), refuses any other.
  - A mounted file system that is in use cannot be unmounted; its unit is then listed in RV(pending), which is
    no failure.
author:
  - First Touch contributors (@firsttouch)
attributes:
  check_mode:
    support: full
    description: Predicts exactly the changes of the real run, except that a busy mount may not stop.
  diff_mode:
    support: full
    description: Shows the unit files.
options:
  units:
    description: The units to have.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: File name of the unit; for a path the escaped name, such as C(dev-hugepages.mount).
        type: str
        required: true
      content:
        description: The unit file, without or with the first line that marks it as ours.
        type: str
        required: true
      enabled:
        description: Whether its C([Install]) section is in force. Left alone when not given.
        type: bool
      state:
        description: Whether it runs. Left alone when not given.
        type: str
        choices: [started, stopped]
      restart_on_change:
        description: Whether an active unit is restarted when its file changes.
        type: bool
        default: false
  restart:
    description: Names of O(units) that are restarted where they run, because something that they read has changed.
    type: list
    elements: str
    default: []
  absent:
    description: Names of units of ours to stop, disable and remove.
    type: list
    elements: str
    default: []
  boots:
    description: For check mode, that the host boots before the real run gets here. What is enabled runs then.
    type: bool
    default: false
  sysroot:
    description: Directory of the tree to change. Below another one than C(/) nothing is started or stopped.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Mount the huge pages, and drop the mount of the old size
  firsttouch.host.systemd_units:
    units:
      - name: mnt-huge.mount
        content: |
          [Mount]
          What=hugetlbfs
          Where=/mnt/huge
          Type=hugetlbfs
          Options=pagesize=2M,nofail

          [Install]
          WantedBy=multi-user.target
        enabled: true
        state: started
    absent:
      - mnt-oldhuge.mount
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "unit:mnt-huge.mount", before: "disabled, inactive", after: "enabled, active"}]
pending:
  description: Units whose new file or removal takes effect when they next stop, at the latest at a reboot.
  returned: success
  type: list
  elements: str
  sample: [mnt-huge.mount]
overrides:
  description: For units that hide one of the distribution, its file.
  returned: success
  type: dict
  sample: {dev-hugepages.mount: /usr/lib/systemd/system/dev-hugepages.mount}
reason:
  description: Why it failed.
  returned: failure
  type: str
  sample: foreign_file
unit:
  description: The unit that the failure is about.
  returned: failure
  type: str
  sample: mnt-huge.mount
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _systemd_units
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal


def _diff(plan: _systemd_units.Plan) -> list[dict[str, str]]:
    return [
        {
            "before_header": step.path,
            "after_header": step.path,
            "before": step.before or "",
            "after": step.after or "",
        }
        for step in plan.steps
        if step.before != step.after
    ]


def _run(module: AnsibleModule) -> None:
    params = module.params
    units = [_systemd_units.Wanted(**unit, restart=unit["name"] in params["restart"]) for unit in params["units"]]
    run = _systemd_units.systemctl(module)
    if run is None and os.path.realpath(params["sysroot"]) == "/":
        module.fail_json(msg="systemd does not run this host, so no unit can be set up", reason="no_systemd")
    boots = params["boots"] and module.check_mode
    plan = _systemd_units.make_plan(params["sysroot"], units, params["absent"], run, boots)
    if module.check_mode:
        plan.pending.extend(step.name for step in plan.steps if step.stale)
    else:
        _systemd_units.apply_plan(plan, run)
    module.exit_json(
        changed=bool(plan.changes),
        changes=plan.changes,
        diff=_diff(plan),
        pending=sorted(plan.pending),
        overrides=plan.overrides,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "units": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "content": {"type": "str", "required": True},
                    "enabled": {"type": "bool"},
                    "state": {"type": "str", "choices": ["started", "stopped"]},
                    "restart_on_change": {"type": "bool", "default": False},
                },
            },
            "restart": {"type": "list", "elements": "str", "default": []},
            "absent": {"type": "list", "elements": "str", "default": []},
            "boots": {"type": "bool", "default": False},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        check_root(module.params["sysroot"])
        _run(module)
    except _systemd_units.UnitError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, unit=exc.unit)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))


if __name__ == "__main__":
    main()
