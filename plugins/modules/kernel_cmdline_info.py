#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_cmdline_info
short_description: Read the kernel command line as configured, as it will boot and as it runs
version_added: 0.1.0
description:
  - Reads what the boot loader's settings say, with file and line of each part, what the entry that boots by
    itself will hand to the kernel, and what runs.
  - Tells what the kernel makes of each of these lines by the rules of its version, and whether given
    arguments hold in every layer.
  - Nothing is executed. /etc/default/grub and its drop-ins are evaluated, not sourced.
  - What cannot be read or must not be guessed is a row of RV(problems), not a failure.
extends_documentation_fragment:
  - firsttouch.host._attributes.reads_only
attributes:
  platform:
    platforms: linux
    support: full
    description: GRUB on Debian and Ubuntu, GRUB with boot loader entries on the RHEL family, systemd-boot.
options:
  sysroot:
    description: Root of the tree to read, for images and recorded hosts.
    type: path
    default: /
  want:
    description: Kernel arguments, in order, to be judged in every layer (RV(wanted)).
    type: list
    elements: str
  kernel:
    description:
      - Release of the kernel whose rules apply to the next boot, such as V(6.1.0-18-amd64).
      - Without it that of the default entry.
    type: str
seealso:
  - module: firsttouch.host.kernel_cmdline
  - module: firsttouch.host.hugepages_info
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Read the command line of this host
  firsttouch.host.kernel_cmdline_info:
  register: cmdline

- name: Judge a recorded host
  firsttouch.host.kernel_cmdline_info:
    sysroot: /srv/recorded/web1
    want: [default_hugepagesz=2M, hugepagesz=2M, 'hugepages=0:512,1:512']
  register: cmdline
  delegate_to: localhost

- name: Show why it does not hold
  ansible.builtin.debug:
    msg: "{{ cmdline.wanted.reason }} at {{ cmdline.wanted.file }}:{{ cmdline.wanted.line }}"
  when: cmdline.wanted.verdict == 'fail'
"""

RETURN = r"""
bootloader:
  description: V(grub), V(grub_bls) or V(systemd_boot); null where none of them was found.
  returned: always
  type: str
  sample: grub
boot_id:
  description: Identity of the running boot.
  returned: always
  type: str
files:
  description: The configuration files in the order the boot loader's tools read them.
  returned: always
  type: list
  elements: str
  sample: [/etc/default/grub, /etc/default/grub.d/50-cloudimg-settings.cfg]
configured:
  description:
    - The settings that end up on command lines. RV(ignore:value) is null where it cannot be told;
      RV(ignore:problem) says why.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Variable or file.
      type: str
      sample: GRUB_CMDLINE_LINUX_DEFAULT
    value:
      description: The value as the shell yields it.
      type: str
      sample: quiet splash
    tokens:
      description: The value split as the kernel does.
      type: list
      elements: str
    sources:
      description: File and line of every assignment that contributed.
      type: list
      elements: dict
    problem:
      description: Reason, file, line and text where the value cannot be told.
      type: dict
configured_line:
  description:
    - The configured part of a normal command line, with the place each argument is written at and whether
      it is ours.
  returned: always
  type: dict
entries:
  description: Every Linux boot entry in menu order.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Identity of the entry.
      type: str
    title:
      description: Title in the menu.
      type: str
    linux:
      description: The kernel image.
      type: str
    args:
      description: The command line the kernel will be given.
      type: str
    recovery:
      description: Whether the entry is meant for repairs.
      type: bool
    default:
      description: Whether it boots by itself.
      type: bool
    file:
      description: Where the entry is written.
      type: str
    line:
      description: Line number in that file.
      type: int
    unresolved:
      description: Boot loader variables whose value is only known at boot.
      type: list
      elements: str
default_entry:
  description: Identity of the entry that boots by itself; null where that is unknown.
  returned: always
  type: str
next_boot:
  description: The command line of the default entry; null where that is unknown.
  returned: always
  type: dict
  contains:
    line:
      description: The line.
      type: str
    tokens:
      description: Pairs of key and value of the arguments the kernel reads, as it splits them.
      type: list
      elements: list
    kernel_tokens:
      description: The same arguments as they are written.
      type: list
      elements: str
    init_arguments:
      description: What stands behind a bare C(--), which goes to init and is not read by the kernel.
      type: list
      elements: str
    sources:
      description: File and line of every argument.
      type: list
      elements: dict
running:
  description: /proc/cmdline, in the same shape; null where it cannot be read.
  returned: always
  type: dict
predicted:
  description:
    - What the kernel makes of the lines RV(ignore:running), RV(ignore:next_boot) and RV(ignore:configured),
      null where there is no line.
    - Pools per size and node, isolation domains as CPU lists, memory in bytes, and its complaints.
    - Where a line lifts a limit on the CPUs that the running kernel was started with, such as C(nr_cpus=), and nothing
      shows how many there are, the CPUs that can be are empty and the warning C(cpu_count_unknown) says so.
  returned: always
  type: dict
problems:
  description: What could not be read or evaluated, or is odd.
  returned: always
  type: list
  elements: dict
  contains:
    reason:
      description:
        - A code, such as V(unquoted_value_with_space), V(unterminated_quote), V(command_substitution),
          V(permission_denied).
      type: str
    file:
      description: The file.
      type: str
    line:
      description: The line.
      type: int
    text:
      description: One sentence.
      type: str
wanted:
  description: The verdict on O(want).
  returned: when O(want) is given
  type: dict
  contains:
    verdict:
      description: V(pass) or V(fail).
      type: str
    reason:
      description: A code such as V(pending_reboot) or V(overridden_by_dropin); null on V(pass).
      type: str
    file:
      description: The file that is the cause.
      type: str
    line:
      description: The line that is the cause.
      type: int
    text:
      description: One sentence.
      type: str
    layers:
      description: V(pass), V(fail) or V(unknown) for each layer.
      type: dict
    entries:
      description: V(pass) or V(fail) for each entry that is not for repairs.
      type: dict
    live:
      description: Whether the running kernel has it.
      type: bool
    staged:
      description: Whether the next boot has it.
      type: bool
    edit:
      description: Whether the settings have to be edited.
      type: bool
    reboot_required:
      description: Whether a reboot is needed for it to be live.
      type: bool
    effective:
      description: The arguments of the next boot.
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._boot_report import (
    boot_id,
    document,
    read_layers,
    verdict,
)


def main() -> None:
    """Read the layers and return them."""
    module = AnsibleModule(
        argument_spec={
            "sysroot": {"type": "path", "default": "/"},
            "want": {"type": "list", "elements": "str"},
            "kernel": {"type": "str"},
        },
        supports_check_mode=True,
    )
    root = module.params["sysroot"]
    try:
        layers = read_layers(root, module.params["kernel"])
    except ValueError as exc:
        module.fail_json(msg=f"kernel: {exc}", reason="invalid_kernel")
    result = document(layers)
    result["boot_id"] = boot_id(root)
    if module.params["want"]:
        result["wanted"] = verdict(layers, module.params["want"])
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
