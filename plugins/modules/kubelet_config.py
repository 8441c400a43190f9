#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_config
short_description: Write our part of a kubelet's configuration, and have it taken
version_added: 0.1.0
description:
  - Writes one file for the C(--config-dir) of the kubelet, or removes it. The kubelet is stopped for that, its state
    files (C(cpu_manager_state), C(memory_manager_state)) are removed where they are of other settings or of other
    memory than the host has, and it is started.
  - State says which container has which CPUs. It is removed from a drained node only; see O(drained).
  - A kubelet that does not come up with the file gets back the one that was there before. One that is not running is
    not started, unless a run of this module that was killed has stopped it.
attributes:
  check_mode:
    support: full
    description: Writes nothing; RV(changes) is what a run would return.
  diff_mode:
    support: full
    description: Shows the file.
  idempotent:
    support: full
    description: The kubelet is left alone where file and state are as asked for.
  platform:
    platforms: linux
    support: full
    description: Linux with systemd.
options:
  file:
    description:
      - The file, in the directory that the kubelet has as C(--config-dir). Nothing is written without it.
    type: path
  config:
    description:
      - The C(KubeletConfiguration), as M(firsttouch.host.host_plan) plans it. The file is removed without it.
    type: dict
  root_dir:
    description:
      - The C(--root-dir) of the kubelet, where its state files are.
    type: path
    default: /var/lib/kubelet
  drained:
    description:
      - Whether the node is drained. Where state would have to be removed from one that is not, the module fails and
        changes nothing.
    type: bool
    default: false
  pools:
    description:
      - The pools of huge pages that the host will have, as C(sections.hugepages.pools) of the plan, where a reboot that
        changes them is predicted. Means nothing outside of check mode.
    type: list
    elements: dict
    default: []
  timeout:
    description:
      - Seconds that the kubelet may take to start.
    type: int
    default: 60
  sysroot:
    description:
      - Directory of the tree to change. Below another one than C(/) no kubelet is stopped or started.
    type: path
    default: /
seealso:
  - module: firsttouch.host.kubelet_info
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Have the kubelet pin whole cores, on a node that is drained
  firsttouch.host.kubelet_config:
    file: "{{ plan.sections.kubelet.file }}"
    config: "{{ plan.sections.kubelet.config }}"
    drained: true

- name: Take our part away again
  firsttouch.host.kubelet_config:
    file: /etc/kubernetes/kubelet.conf.d/zz-firsttouch.conf
    drained: true
"""

RETURN = r"""
changes:
  description: The change set, in check mode its prediction.
  returned: success
  type: list
  elements: dict
  sample: [{resource: "unit:kubelet.service", before: "active, old settings", after: "active, new settings"}]
drain_due:
  description:
    - Whether state is removed, for which the node must be drained. Also in the run that finishes one that was killed,
      so that the node comes into service again.
  returned: success
  type: bool
reason:
  description: Why it failed.
  returned: failure
  type: str
  sample: not_drained
file:
  description: The file that the failure is about.
  returned: failure
  type: str
  sample: /var/lib/kubelet/cpu_manager_state
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _kubelet_apply
from ansible_collections.firsttouch.host.plugins.module_utils._files import refusal
from ansible_collections.firsttouch.host.plugins.module_utils._systemd_units import UnitError, systemctl
from ansible_collections.firsttouch.host.plugins.module_utils._topology import read_topology


def _run(module: AnsibleModule) -> None:
    given = module.params
    # An OSError is raised, where run_command() would end the module with the kubelet stopped.
    run = systemctl(module, handle_exceptions=False)
    pages = _kubelet_apply.pages_of(given["pools"]) if module.check_mode else {}
    plan = _kubelet_apply.make_plan(
        given["sysroot"],
        given["file"],
        given["config"],
        given["root_dir"],
        read_topology(given["sysroot"]),
        pages,
        run,
    )
    if plan.states and not given["drained"]:
        path = next(iter(plan.states))
        # A removal has no variable that says so: revert takes the mapping, a run before it records it.
        when = (
            ""
            if given["config"]
            else " to the revert playbook, or in a run before firsttouch_kubelet is absent,"
        )
        text = (
            f"{path} ({plan.states[path][0]}) has to go, and it says which container has which CPUs: drain the node "
            f"first (firsttouch_hook_before), or say{when} that it is drained (firsttouch_kubelet: {{drained: true}})"
        )
        module.fail_json(msg=text, reason="not_drained", file=path)
    if not module.check_mode:
        _kubelet_apply.apply_plan(plan, run, given["timeout"])
    module.exit_json(changed=plan.due, changes=plan.changes, diff=plan.diff, drain_due=plan.drain_due)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "file": {"type": "path"},
            "config": {"type": "dict"},
            "root_dir": {"type": "path", "default": "/var/lib/kubelet"},
            "drained": {"type": "bool", "default": False},
            "pools": {"type": "list", "elements": "dict", "default": []},
            "timeout": {"type": "int", "default": 60},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        _run(module)
    except _kubelet_apply.KubeletApplyError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, file=exc.path)
    except UnitError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason)
    except OSError as exc:
        module.fail_json(**refusal(exc, "write_error"))


if __name__ == "__main__":
    main()
