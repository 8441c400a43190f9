#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_install
short_description: Install, upgrade, roll back or remove the Python runtime in one call
version_added: 0.1.0
description:
  - Makes a virtual environment of the runtime C(firsttouch) below C(/opt/firsttouch), tries it, and makes the link
    C(/opt/firsttouch/current) lead to it at once. The version before stays, as C(/opt/firsttouch/previous).
  - The wheels are unpacked by the host's own Python. Neither pip nor a compiler nor an index is needed on the host.
  - Our wheel is made on the controller of the source that comes with the collection. The others (numpy, msgspec, and
    where they are to be had xxhash and ml-dtypes) come from O(wheels_dir), or by pip on the controller.
  - Also keeps the system user C(firsttouch), C(/run/firsttouch) and the files of models and servers.
author:
  - First Touch contributors (@firsttouch)
attributes:
  check_mode:
    support: full
    description: Writes nothing on the host; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows the files below C(/etc).
  idempotent:
    support: full
    description: A version that is there is not touched. One that was damaged by hand is made again.
options:
  state:
    description:
      - >-
        V(present) has the version of the collection as the current one. V(rollback) goes back to the one before it,
        once: that one stays until V(present), whichever controller asks. It needs no wheels.
      - V(absent) removes all versions, our files and our user.
      - V(query) only tells about the host.
    type: str
    choices: [present, rollback, absent, query]
    default: present
  files:
    description:
      - The texts of C(models/NAME.json), C(servers/NAME.json) and C(samplers/NAME.env) below C(/etc/firsttouch).
      - Others in these directories are removed.
    type: dict
    default: {}
  drop_group:
    description: Whether O(state=absent) removes the group C(firsttouch) with the user, unless others are in it.
    type: bool
    default: false
  wheels_dir:
    description: Directory of wheels on the controller, from which all but ours are taken. By pip when omitted.
    type: str
  id:
    description: Name of the version that O(wheels) make. Given by the controller.
    type: str
    default: ""
  wheels:
    description: The wheels. Given by the controller.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: File name.
        type: str
        required: true
      sha256:
        description: Digest of the file.
        type: str
        required: true
  wheels_at:
    description: Where on the host the wheels lie. Given by the controller.
    type: path
seealso:
  - module: firsttouch.host.systemd_units
"""

EXAMPLES = r"""
- name: Install the runtime from a directory of wheels
  firsttouch.host.runtime_install:
    wheels_dir: /srv/wheels

- name: Go back to the version before
  firsttouch.host.runtime_install:
    state: rollback
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "file:/opt/firsttouch/current", before: null, after: "-> 0.1.0-0123456789ab"}]
switched:
  description: Whether another version has become the current one, so that what runs must be restarted.
  returned: success
  type: bool
restart:
  description: Units that run on something that was changed, for O(firsttouch.host.systemd_units#module:restart).
  returned: success
  type: list
  elements: str
  sample: [firsttouch-server@policy.service]
installed:
  description: The complete and undamaged versions on the host, before the call.
  returned: O(state=query)
  type: list
  elements: str
current:
  description: The current version, before the call.
  returned: O(state=query)
  type: str
previous:
  description: The version before the current one.
  returned: O(state=query)
  type: str
python:
  description: Version of the Python that runs the module, which the runtime will use.
  returned: O(state=query)
  type: list
  elements: int
machine:
  description: The architecture.
  returned: O(state=query)
  type: str
glibc:
  description: Version of the C library, V(null) when it is another one.
  returned: O(state=query)
  type: list
  elements: int
reason:
  description: Why it failed.
  returned: failure
  type: str
  sample: wheel_missing
"""

from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _runtime_install
from ansible_collections.firsttouch.host.plugins.module_utils._files import refusal


def _wanted(given: dict[str, Any]) -> _runtime_install.Wanted:
    return _runtime_install.Wanted(
        state=str(given["state"]),
        identity=str(given["id"]),
        wheels=tuple((row["name"], row["sha256"]) for row in given["wheels"]),
        wheels_at=None if given["wheels_at"] is None else str(given["wheels_at"]),
        files=given["files"],
        drop_group=bool(given["drop_group"]),
    )


def _run(module: AnsibleModule) -> None:
    if module.params["state"] == "query":
        module.exit_json(changed=False, **_runtime_install.query())

    def run(words: Sequence[str]) -> tuple[int, str, str]:
        code, out, err = module.run_command(list(words), environ_update={"LC_ALL": "C"})
        return code, out, err

    wanted = _wanted(module.params)
    plan = _runtime_install.make_plan("/", wanted)
    if not module.check_mode:
        _runtime_install.apply_plan(plan, wanted, run)
    diff = [
        {"before_header": path, "after_header": path, "before": old or "", "after": new or ""}
        for path, (old, new) in plan.texts.items()
    ]
    module.exit_json(
        changed=bool(plan.changes),
        changes=plan.changes,
        switched=plan.switched,
        restart=plan.restart(wanted.files),
        diff=diff,
    )


def main() -> None:
    wheel = {"name": {"type": "str", "required": True}, "sha256": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "rollback", "absent", "query"],
                "default": "present",
            },
            "files": {"type": "dict", "default": {}},
            "drop_group": {"type": "bool", "default": False},
            "wheels_dir": {"type": "str"},
            "id": {"type": "str", "default": ""},
            "wheels": {"type": "list", "elements": "dict", "default": [], "options": wheel},
            "wheels_at": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        _run(module)
    except _runtime_install.InstallError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))


if __name__ == "__main__":
    main()
