#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sysctl_dropin
short_description: Own one sysctl file, and set its keys in the running kernel
version_added: 0.1.0
description:
  - Writes one whole file of C(sysctl.d) and sets each of its keys by itself, so that an unknown key in
    somebody else's file never matters. Each key is read back.
  - All or nothing. A key that the kernel lacks, a value it refuses, or a later file that would win, is an
    error that changes nothing.
  - Never writes through a symbolic link or over a file that it did not write.
author:
  - First Touch contributors (@firsttouch)
attributes:
  check_mode:
    support: full
    description: Predicts exactly the changes of the real run, except for a value that the kernel refuses.
  diff_mode:
    support: full
    description: Shows the file, and the values of the running kernel.
options:
  values:
    description:
      - Keys and values, in the order in which they are written.
      - An empty dictionary removes the file.
    type: dict
    default: {}
  state:
    description: Whether the file is there.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: The file to own.
    type: path
    default: /etc/sysctl.d/zz-firsttouch.conf
  restore:
    description:
      - Values to put back into the running kernel for keys that the file names and O(values) no longer does.
      - For keys that zero each other give both, as RV(found) had them.
    type: dict
    default: {}
  optional:
    description: Keys of O(values) that the kernel may lack; they are then left out of the file.
    type: list
    elements: str
    default: []
  on_override:
    description: What to do when another file wins over a key of O(values).
    type: str
    choices: [fail, warn]
    default: fail
  sysroot:
    description:
      - Directory of the tree to change.
      - Keys are set where the tree has a C(/proc/sys) of its own, and only written to the file where it has
        none or has the one of the running host mounted.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Keep the page cache from pushing out the model
  firsttouch.host.sysctl_dropin:
    values:
      vm.swappiness: 0
      vm.dirty_background_ratio: 3
      vm.dirty_ratio: 8

- name: Take our settings away and put the old ones back
  firsttouch.host.sysctl_dropin:
    state: absent
    restore:
      vm.swappiness: 60
"""

RETURN = r"""
sysctls:
  description:
    - What became of each key, V(applied), V(unchanged), V(unsupported), V(overridden), or V(persisted) where
      there is no kernel to set.
  returned: success
  type: dict
  sample: {vm.swappiness: applied}
found:
  description: The values of all keys concerned, and of those they zero, before this call.
  returned: success
  type: dict
  sample: {vm.dirty_ratio: "20", vm.dirty_bytes: "0"}
overridden:
  description: For each overridden key the file that wins.
  returned: success
  type: dict
  sample: {vm.swappiness: /etc/sysctl.d/zzz-vendor.conf}
not_restored:
  description: Keys that are no longer ours and keep their value until the next boot.
  returned: success
  type: list
  elements: str
  sample: []
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "sysctl:vm.swappiness", before: "60", after: "0"}]
reason:
  description: Why nothing was changed.
  returned: failure
  type: str
  sample: overridden_by
names:
  description: The keys that the failure is about.
  returned: failure, where it is about keys
  type: list
  elements: str
  sample: [vm.swappiness]
file:
  description: The file that the failure is about.
  returned: failure, where it is about a file
  type: str
  sample: /etc/sysctl.d/zzz-vendor.conf
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _sysctl, _sysctl_dropin
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal


def _diff(plan: _sysctl_dropin.Plan) -> list[dict[str, str]]:
    def lines(values: dict[str, str]) -> str:
        return "".join(f"{_sysctl.dotted(key)} = {value}\n" for key, value in sorted(values.items()))

    rows = [
        (plan.path, plan.before_text or "", plan.after_text or ""),
        ("/proc/sys", lines(plan.live), lines(plan.after)),
    ]
    return [
        {"before_header": where, "after_header": where, "before": before, "after": after}
        for where, before, after in rows
        if before != after
    ]


def _run(module: AnsibleModule) -> None:
    params = module.params
    absent = params["state"] == "absent"
    if absent and params["values"]:
        module.fail_json(msg="state=absent takes no values", reason="bad_value")
    optional = [_sysctl.check_key(key) for key in params["optional"]]
    plan = _sysctl_dropin.make_plan(
        params["sysroot"],
        params["path"],
        _sysctl.check_values(params["values"]),
        optional=optional,
        restore=_sysctl.check_values(params["restore"]),
        on_override=params["on_override"],
    )
    if not module.check_mode:
        _sysctl_dropin.apply_plan(plan)
    for key, path in plan.overridden.items():
        module.warn(f"{_sysctl.dotted(key)} is overridden by {path}")
    module.exit_json(
        changed=bool(plan.changes),
        changes=plan.changes,
        diff=_diff(plan),
        sysctls={_sysctl.dotted(key): status for key, status in plan.status.items()},
        found={_sysctl.dotted(key): value for key, value in plan.live.items()},
        overridden={_sysctl.dotted(key): path for key, path in plan.overridden.items()},
        not_restored=[_sysctl.dotted(key) for key in plan.not_restored],
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "values": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path", "default": "/etc/sysctl.d/zz-firsttouch.conf"},
            "restore": {"type": "dict", "default": {}},
            "optional": {"type": "list", "elements": "str", "default": []},
            "on_override": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        check_root(module.params["sysroot"])
        _run(module)
    except _sysctl_dropin.DropinError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, **exc.details)
    except _sysctl.SysctlError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, names=[exc.key])
    except OSError as exc:
        module.fail_json(**refusal(exc, "read_error"))


if __name__ == "__main__":
    main()
