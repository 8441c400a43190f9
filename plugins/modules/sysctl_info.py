#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sysctl_info
short_description: Tell which file decides each sysctl, and whether it is as wanted
version_added: 0.1.0
description:
  - Reads the sysctl files as systemd-sysctl does at boot (sysctl.d(5)) and as C(sysctl --system) of procps
    does, and the running kernel, and names for each key the file and line that decides.
  - Knows masked files, globs and their exclusions, the pairs of keys that zero each other (such as
    C(vm.dirty_ratio) and C(vm.dirty_bytes)), keys that the kernel lacks, and settings of tuned, UFW and the
    kernel command line.
  - A foreign key that the kernel lacks is a note and never fails the wanted ones.
author:
  - First Touch contributors (@firsttouch)
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
options:
  want:
    description:
      - Keys and the values they should have. Without it all keys of the files are reported, none is judged.
    type: dict
    default: {}
  optional:
    description:
      - Keys of O(want) that the kernel may lack; they are then skipped instead of failed.
    type: list
    elements: str
    default: []
  default_hugepage_size:
    description:
      - The default huge page size of the next boot, such as V(1G), when it is not the running one.
      - C(vm.nr_hugepages) counts pages of this size.
    type: str
  sysroot:
    description: Directory of the tree to read.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Check two sysctls
  firsttouch.host.sysctl_info:
    want:
      vm.swappiness: 0
      vm.dirty_ratio: 8
  register: sysctls

- name: Show what decides vm.swappiness
  ansible.builtin.debug:
    msg: "{{ sysctls.sysctls['vm.swappiness'].winner }}:{{ sysctls.sysctls['vm.swappiness'].line }}"
"""

RETURN = r"""
verdict:
  description: The worst verdict of all keys and findings (V(pass), V(skip), V(warn), V(unknown), V(fail)).
  returned: success, null when nothing was wanted or found
  type: str
  sample: fail
sysctls:
  description: Facts and verdict for each key, by its dotted name.
  returned: success
  type: dict
  sample:
    vm.dirty_ratio:
      asked: "10"
      got: "0"
      boot_value: "0"
      winner: /etc/sysctl.d/90-vm.conf
      line: 1
      procps_value: "0"
      live: "0"
      live_state: value
      persisted: true
      definers: [{file: /etc/sysctl.d/90-vm.conf, line: 1, value: "10"}]
      later_definers: []
      masked: []
      counterpart: vm.dirty_bytes
      counterpart_value: "1073741824"
      file: /etc/sysctl.d/99-zz-desktop.conf
      verdict: fail
      reason: counterpart_set
      text: "vm.dirty_ratio: asked 10, got 0: vm.dirty_bytes=1073741824 in ... zeroes it"
order:
  description: The files that systemd-sysctl applies, in order.
  returned: success
  type: list
  elements: str
  sample: [/usr/lib/sysctl.d/50-default.conf, /etc/sysctl.d/zz-firsttouch.conf]
masked:
  description: The files that one of the same name in an earlier directory hides.
  returned: success
  type: list
  elements: str
  sample: [/usr/lib/sysctl.d/50-default.conf]
foreign_unsupported:
  description: Keys of other files that this kernel lacks.
  returned: success
  type: list
  elements: str
  sample: [net.bridge.bridge-nf-call-iptables]
foreign_writers:
  description: Settings of tuned, UFW, tmpfiles.d and the kernel command line, of the wanted keys when there are any.
  returned: success
  type: list
  elements: dict
  sample:
    - {writer: tuned, key: vm.swappiness, value: "10", file: /etc/tuned/llm/tuned.conf, line: 5}
findings:
  description: What is wrong beyond the single keys, each with V(verdict), V(reason) and V(text).
  returned: success
  type: list
  elements: dict
  sample:
    - verdict: fail
      reason: nr_hugepages_default_size_overcommit
      key: vm.nr_hugepages
      value: "2048"
      file: /etc/sysctl.d/90-hugepages.conf
      line: 1
      bytes_requested: 2199023255552
      mem_total_kB: 65850368
      default_page_kB: 1048576
      text: "..."
notes:
  description: What is worth knowing and fails nothing, each with V(reason) and V(text).
  returned: success
  type: list
  elements: dict
  sample: [{reason: rt_throttling_off, value: "-1", text: "..."}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils import _sysctl, _sysctl_foreign, _sysctl_judge
from ansible_collections.firsttouch.host.plugins.module_utils._files import refusal


def _default_page_kb(module: AnsibleModule, running_kb: int | None) -> int | None:
    size = module.params["default_hugepage_size"]
    if size is None:
        return running_kb
    page_kb = _sysctl_judge.size_kb(size)
    if page_kb is None:
        module.fail_json(msg=f"default_hugepage_size {size!r}: want a size like 2M or 1G", reason="bad_value")
    return page_kb


def _notes(
    resolution: _sysctl.Resolution, want: dict[str, str], unsupported: list[_sysctl.Assignment]
) -> list[dict[str, Any]]:
    notes = _sysctl_judge.rt_notes(resolution.root, want)
    for item in unsupported:
        key = _sysctl.dotted(item.key)
        text = f"{item.real}:{item.line} sets {key}, which this kernel lacks"
        notes.append({"reason": "foreign_unsupported", "key": key, **item.as_dict(), "text": text})
    for path, why in sorted(resolution.unreadable.items()):
        notes.append({"reason": why, "file": path, "text": f"{path} cannot be read"})
    for path, line, content in resolution.ignored:
        text = f"{path}:{line} is no assignment and is ignored: {content}"
        notes.append({"reason": "not_an_assignment", "file": path, "line": line, "text": text})
    return notes


def _hidden_notes(hidden: dict[str, OSError]) -> list[dict[str, Any]]:
    """Files and folders of other writers that cannot be read: that one of them sets a key too cannot be told."""
    return [
        {"reason": refusal(exc, "read_error")["reason"], "file": path, "text": f"{path} cannot be read"}
        for path, exc in sorted(hidden.items())
    ]


def _run(module: AnsibleModule) -> None:
    root = module.params["sysroot"]
    optional = module.params["optional"]
    want = _sysctl.check_values(module.params["want"], optional)
    resolution = _sysctl.resolve_sysctls(root)
    hidden: dict[str, OSError] = {}
    foreign = _sysctl_foreign.writers(root, hidden)
    reports = _sysctl_judge.report(resolution, want, optional, foreign)
    running_kb, total_kb = _sysctl_judge.memory_facts(root)
    findings = [
        *_sysctl_judge.pool_findings(resolution, _default_page_kb(module, running_kb), total_kb),
        *_sysctl_foreign.rt_groups(root),
    ]
    unsupported = _sysctl_judge.foreign_unsupported(resolution, want)
    module.exit_json(
        changed=False,
        verdict=_sysctl_judge.overall(reports, findings),
        sysctls=reports,
        order=resolution.order,
        masked=sorted(resolution.masked),
        foreign_unsupported=[_sysctl.dotted(item.key) for item in unsupported],
        foreign_writers=[
            {**vars(item), "key": _sysctl.dotted(item.key)}
            for item in foreign
            if not want or item.key in want
        ],
        findings=findings,
        notes=[*_notes(resolution, want, unsupported), *_hidden_notes(hidden)],
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "want": {"type": "dict", "default": {}},
            "optional": {"type": "list", "elements": "str", "default": []},
            "default_hugepage_size": {"type": "str"},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        _run(module)
    except _sysctl.SysctlError as exc:
        module.fail_json(msg=str(exc), reason=exc.reason, key=exc.key)
    except OSError as exc:
        module.fail_json(**refusal(exc, "read_error"))


if __name__ == "__main__":
    main()
