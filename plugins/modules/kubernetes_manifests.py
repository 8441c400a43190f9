#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_manifests
short_description: Write manifests of Kubernetes that keep to the plan of a host
version_added: 0.1.0
description:
  - Writes C(loader.yml) (a DaemonSet that loads the models), C(worker.yml) (a pod that maps them read-only) and
    C(hugepages-SIZE.yml) (a pod with huge pages of its own) into a directory that is named like RV(label).
  - Hosts with the same pools, mounts and models have the same label, and their nodes are to be given it.
  - Runs on the controller and talks to no cluster.
attributes:
  check_mode:
    support: full
    description: Writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows the files.
  idempotent:
    support: full
    description: Files are written only where they differ.
options:
  plan:
    description:
      - The plan of a host, as M(firsttouch.host.host_plan) returns it.
    type: dict
    required: true
  dest:
    description:
      - The directory below which the one with the manifests is made.
    type: path
    required: true
  image:
    description:
      - The container image with the runtime.
    type: str
    required: true
seealso:
  - module: firsttouch.host.kubelet_config
  - module: firsttouch.host.kubelet_info
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Write the manifests for the hosts of a plan
  firsttouch.host.kubernetes_manifests:
    plan: "{{ result.plan }}"
    dest: manifests
    image: registry.example/firsttouch:0.1.0
  delegate_to: localhost
"""

RETURN = r"""
label:
  description: The value of the label C(firsttouch.host/plan), which the node needs, and the name of the directory.
  returned: success
  type: str
  sample: 5d41402abc4b
files:
  description: The manifests.
  returned: success
  type: list
  elements: str
  sample: [manifests/5d41402abc4b/loader.yml]
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
reason:
  description: Why nothing was written.
  returned: failure
  type: str
  sample: mount_without_size
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _files, _manifests


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "dest": {"type": "path", "required": True},
            "image": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        label = _manifests.digest(given["plan"], given["image"])
        texts = _manifests.render(given["plan"], given["image"])
    except _manifests.ManifestError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    folder = os.path.join(os.path.abspath(given["dest"]), label)
    wanted = {f"{folder}/{name}": text for name, text in texts.items()}
    try:
        rows = [(path, _files.read_text("/", path), text) for path, text in wanted.items()]
        changed = [row for row in rows if row[1] != row[2]]
        for path, _before, text in changed if not module.check_mode else ():
            _files.atomic_write(_files.resolve("/", path), text, 0o644)
    except OSError as exc:
        module.fail_json(**_files.refusal(exc, "write_error"))
    module.exit_json(
        changed=bool(changed),
        label=label,
        files=sorted(wanted),
        changes=[{"resource": f"file:{path}", "before": old, "after": new} for path, old, new in changed],
        diff=[
            {"before_header": path, "after_header": path, "before": old or "", "after": new}
            for path, old, new in changed
        ],
    )


if __name__ == "__main__":
    main()
