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
    description: Files and service are changed only where they differ.
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
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _irqbalance
from ansible_collections.firsttouch.host.plugins.module_utils._files import atomic_write, remove, resolve


def _systemctl(module, *arguments):
    command = [module.get_bin_path("systemctl", required=True), *arguments]
    code, out, err = module.run_command(command, environ_update={"LC_ALL": "C"})
    if code != 0:
        module.fail_json(msg=f"{' '.join(command)}: {err.strip() or out.strip()}", reason="systemctl_failed")


def _apply(module, root, differences):
    for path, (_before, after) in differences.items():
        real = resolve(root, path)
        if after is not None:
            atomic_write(real, after)
            continue
        remove(real)
        try:
            os.rmdir(os.path.dirname(real))
        except OSError:  # somebody else's files are in it
            continue
    if os.path.realpath(root) == "/":
        _systemctl(module, "daemon-reload")
        # Starts it only where it ran or would run at boot; `off` is a condition that does not hold, which is no error.
        code, out, _err = module.run_command(["systemctl", "is-enabled", _irqbalance.SERVICE])
        if code == 0 and out.strip() == "enabled":
            _systemctl(module, "restart", _irqbalance.SERVICE)


def main():
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "required": True, "choices": list(_irqbalance.MODES)},
            "isolated": {"type": "str", "default": ""},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["sysroot"]
    try:
        installed = _irqbalance.installed(root)
        mode = module.params["mode"] if installed else "keep"
        wanted = _irqbalance.wanted_files(mode, module.params["isolated"])
        differences = _irqbalance.differences(root, wanted)
        if differences and not module.check_mode:
            _apply(module, root, differences)
    except _irqbalance.ForeignFileError as exc:
        module.fail_json(msg=str(exc), reason="foreign_file", file=exc.path)
    except ValueError as exc:
        module.fail_json(msg=f"isolated: {exc}", reason="bad_value")
    except OSError as exc:
        module.fail_json(msg=f"{exc.filename}: {exc.strerror}", reason="write_error", file=exc.filename)
    module.exit_json(
        changed=bool(differences),
        installed=installed,
        changes=[
            {"resource": f"file:{path}", "before": before, "after": after}
            for path, (before, after) in sorted(differences.items())
        ],
        diff=[
            {"before_header": path, "after_header": path, "before": before or "", "after": after or ""}
            for path, (before, after) in sorted(differences.items())
        ],
    )


if __name__ == "__main__":
    main()
