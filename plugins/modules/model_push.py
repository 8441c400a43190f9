#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_push
short_description: Push the files of models from the controller, all of a model at once
version_added: 0.1.0
description:
  - Brings safetensors files of the controller into C(/var/lib/firsttouch/models/NAME), a folder for each model, which
    root writes and the group C(firsttouch) reads.
  - The folder is made beside, and takes the place of the one before when it is whole. What had arrived of a push that
    was cut off is not sent again.
  - Files are compared by their SHA-256, on both sides and in each run, which reads all of them.
  - That there is room for what is to be sent is looked at before anything is sent.
  - What is in a folder and was not pushed by this module is never removed. A push there is refused (V(foreign_file))
    before anything is changed; a folder that is removed stays with it, see RV(left).
author:
  - First Touch contributors (@firsttouch)
attributes:
  check_mode:
    support: full
    description: Sends and writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows names, sizes and digests of the files, not what is in them.
  idempotent:
    support: full
    description: What is there is not sent again.
options:
  models:
    description:
      - >-
        Path on the controller by the name of the model. A safetensors file, a folder with an index or with one such
        file, or the index. Absolute, or relative to the inventory.
      - Of a folder only the files that the index names are taken, and the index. None may lie outside of the folder.
    type: dict
    default: {}
  absent:
    description:
      - Names of models whose files are removed, and the folder where nothing else is in it. A folder that was not
        pushed by this module stays as it is.
    type: list
    elements: str
    default: []
  step:
    description: What the controller asks for at the moment. Given by the controller.
    type: str
    choices: [plan, place, finish]
    default: plan
  files:
    description: The files of each model, with name, bytes and sha256. Given by the controller.
    type: dict
    default: {}
  temporary:
    description: Where on the host each file arrives. Given by the controller.
    type: path
  arrived:
    description: The file that arrived, with its model, for O(step=place). Given by the controller.
    type: dict
    suboptions:
      model:
        description: Name of the model.
        type: str
        required: true
      file:
        description: The file, as in O(files).
        type: dict
        required: true
      path:
        description: Where it lies.
        type: path
        required: true
  make:
    description: The models whose folder is to be made, for O(step=finish). Given by the controller.
    type: list
    elements: str
    default: []
seealso:
  - module: firsttouch.host.runtime_install
"""

EXAMPLES = r"""
- name: Push a model that lies beside the inventory
  firsttouch.host.model_push:
    models:
      llama: models/llama

- name: Remove what was pushed of another
  firsttouch.host.model_push:
    absent: [gemma]
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample:
    - resource: file:/var/lib/firsttouch/models/llama/model.safetensors
      before: null
      after: sha256:0263829989b6fd954f72baaf2fc64bc2e2f01d692d4de72986ea808f6e99813f
restart:
  description: Units that load files that were changed, for O(firsttouch.host.systemd_units#module:restart).
  returned: success
  type: list
  elements: str
  sample: [firsttouch-weights@llama.service]
left:
  description: What stays of folders that were to be removed, as this module did not push it. Each is a warning too.
  returned: success
  type: list
  elements: str
  sample: [/var/lib/firsttouch/models/llama/lora.safetensors was not pushed by us]
reason:
  description: Why it failed.
  returned: failure
  type: str
  sample: no_space
"""

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _model_push
from ansible_collections.firsttouch.host.plugins.module_utils._files import refusal


def _file(row: Mapping[str, Any]) -> _model_push.File:
    return _model_push.File(str(row["name"]), int(row["bytes"]), str(row["sha256"]))


def _run(module: AnsibleModule) -> None:
    given = module.params
    files = {str(name): [_file(row) for row in rows] for name, rows in given["files"].items()}
    if given["step"] == "place":
        arrived = given["arrived"]
        _model_push.place("/", arrived["model"], _file(arrived["file"]), arrived["path"])
        module.exit_json(changed=True)
    if given["step"] == "finish":
        _model_push.finish("/", files, given["make"], given["absent"])
        module.exit_json(changed=True)
    plan = _model_push.make_plan("/", files, given["absent"])
    _model_push.check_space("/", plan, given["temporary"])
    for text in plan.left:
        module.warn(f"{text}; it stays with its folder: move it elsewhere, and remove that")
    diff = [
        {"before_header": path, "after_header": path, "before": old or "", "after": new or ""}
        for path, (old, new) in plan.texts.items()
    ]
    module.exit_json(
        changed=bool(plan.rows),
        changes=plan.rows,
        restart=plan.restart,
        left=plan.left,
        make=plan.make,
        missing=[{"model": name, "name": file.name} for name, file in plan.missing],
        diff=diff,
    )


def main() -> None:
    arrived = {
        "model": {"type": "str", "required": True},
        "file": {"type": "dict", "required": True},
        "path": {"type": "path", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "dict", "default": {}},
            "absent": {"type": "list", "elements": "str", "default": []},
            "step": {"type": "str", "choices": ["plan", "place", "finish"], "default": "plan"},
            "files": {"type": "dict", "default": {}},
            "temporary": {"type": "path"},
            "arrived": {"type": "dict", "options": arrived},
            "make": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        _run(module)
    except _model_push.PushError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))


if __name__ == "__main__":
    main()
