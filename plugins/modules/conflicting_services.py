#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: conflicting_services
short_description: Keep services that fight the settings of the plan from running
version_added: 0.1.0
description:
  - Stops services and keeps them from starting, at boot, by hand and over D-Bus, by a drop-in of each that is ours.
    They stay installed and enabled, and without the drop-in each is as it was.
  - Only services of one short table are ever stopped. One that is not installed is left out.
attributes:
  check_mode:
    support: full
    description:
      - Writes nothing; RV(changes) is what a run would return. Values that a service itself puts back when it stops, as
        tuned does, are not predicted.
  diff_mode:
    support: full
    description: Shows the drop-ins.
  idempotent:
    support: full
    description: Drop-ins and services are changed only where they differ.
  platform:
    platforms: linux
    support: full
    description: Linux with systemd.
options:
  stop:
    description:
      - The services that must not run. One that was held before and is not named any more is let go.
    type: list
    elements: str
    default: []
    choices:
      - tuned.service
      - ksm.service
      - ksmtuned.service
      - numad.service
      - disable-transparent-huge-pages.service
      - enable-transparent-huge-pages.service
      - disable-thp.service
  found:
    description:
      - By the name of a service what it was before it was held, as M(firsttouch.host.plan_record) saved it.
      - One that was active is started when it is let go.
    type: dict
    default: {}
  sysroot:
    description: Directory of the tree to change. Below another one than C(/) nothing is started or stopped.
    type: path
    default: /
seealso:
  - module: firsttouch.host.irqbalance
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Keep tuned from running
  firsttouch.host.conflicting_services:
    stop:
      - tuned.service

- name: Let all services go, and start tuned again
  firsttouch.host.conflicting_services:
    found:
      tuned.service:
        active: true
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "unit:tuned.service", before: active, after: inactive}]
reason:
  description: Why it failed.
  returned: failure
  type: str
  sample: foreign_file
unit:
  description: The service that the failure is about.
  returned: failure
  type: str
  sample: tuned.service
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _service_state, _services
from ansible_collections.firsttouch.host.plugins.module_utils._files import check_root, refusal
from ansible_collections.firsttouch.host.plugins.module_utils._systemd_units import UnitError, systemctl


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "stop": {"type": "list", "elements": "str", "default": [], "choices": list(_services.TABLE)},
            "found": {"type": "dict", "default": {}},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    found = {unit: row for unit, row in given["found"].items() if isinstance(row, dict)}
    run = systemctl(module)
    try:
        check_root(given["sysroot"])
        plan = _service_state.hold_plan(given["sysroot"], given["stop"], found, run)
        if not module.check_mode and plan.due:
            _service_state.apply_plan(plan, run)
    except UnitError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, unit=exc.unit)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))
    module.exit_json(changed=bool(plan.changes), changes=plan.changes, diff=plan.diff)


if __name__ == "__main__":
    main()
