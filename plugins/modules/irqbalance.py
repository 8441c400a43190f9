#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: irqbalance
short_description: Keep irqbalance away from isolated CPUs
version_added: 0.1.0
description:
  - Bans a list of CPUs for irqbalance, or switches it off, by a drop-in of C(irqbalance.service) that is ours. The
    distribution's own configuration stays untouched, and without the drop-in everything is as it was.
  - Where irqbalance is not installed nothing is changed.
attributes:
  check_mode:
    support: full
    description: Writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows both files.
  idempotent:
    support: full
    description: Files and service are changed only where they differ. A daemon with another list is restarted.
options:
  mode:
    description:
      - V(ban_isolated) bans O(isolated). V(off) keeps the service from running. V(keep) removes what is ours.
    type: str
    required: true
    choices: [keep, ban_isolated, 'off']
  isolated:
    description: The CPUs to ban, as a kernel CPU list.
    type: str
    default: ""
  found:
    description:
      - What the service was before it was ours, as M(firsttouch.host.plan_record) saved it. After V(off) it is started
        again where RV(ignore:active) was true; without this option where it is enabled.
    type: dict
    default: {}
  sysroot:
    description: Directory of the tree to change. Below another one than C(/) the service is not restarted.
    type: path
    default: /
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Keep interrupts off the isolated CPUs
  firsttouch.host.irqbalance:
    mode: ban_isolated
    isolated: 2-7
"""

RETURN = r"""
installed:
  description: Whether the host has irqbalance.
  type: bool
  returned: success
changes:
  description: The change set, in check mode its prediction.
  type: list
  elements: dict
  returned: success
  sample: [{resource: "file:/etc/firsttouch/irqbalance.env", before: null, after: "IRQBALANCE_BANNED_CPULIST=2-7"}]
reason:
  description: Why it failed.
  type: str
  returned: failure
  sample: foreign_file
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _irqbalance, _service_state
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, read_text, refusal
from ansible_collections.firsttouch.host.plugins.module_utils._systemd_units import UnitError, systemctl


def _environ(pid: int) -> str | None:
    return read_text("/", f"/proc/{pid}/environ")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "required": True, "choices": list(_irqbalance.MODES)},
            "isolated": {"type": "str", "default": ""},
            "found": {"type": "dict", "default": {}},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = given["sysroot"]
    run = systemctl(module)
    try:
        check_root(root)
        plan = _irqbalance.make_plan(root, given["mode"], given["isolated"], given["found"], run, _environ)
        if not module.check_mode and plan.due:
            _service_state.apply_plan(plan, run)
        installed = _irqbalance.installed(root)
    except UnitError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, unit=exc.unit)
    except ValueError as exc:
        module.fail_json(msg=f"isolated: {exc}", reason="bad_value")
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))
    module.exit_json(changed=bool(plan.changes), installed=installed, changes=plan.changes, diff=plan.diff)


if __name__ == "__main__":
    main()
