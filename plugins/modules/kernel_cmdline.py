#!/usr/bin/python
# Copyright: First Touch contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_cmdline
short_description: Put kernel arguments of ours on the command line of the next boot
version_added: 0.1.0
description:
  - Makes an ordered list of kernel arguments part of the next boot, or takes it away, and proves that the
    entry that will boot has it before it is put in place.
  - Arguments of others keep their text and their order. One that contradicts ours is an error that names
    its file and line, see O(on_conflict).
  - On Debian and Ubuntu the arguments are appended to C(GRUB_CMDLINE_LINUX_DEFAULT) by a drop-in of our
    own, /etc/default/grub.d/zzz-firsttouch.cfg, so that recovery entries stay free of them. C(grub.cfg) is
    made beside the old one, checked and renamed.
  - On the RHEL family C(grubby) changes the boot entries in one call; /etc/kernel/cmdline and
    /etc/default/grub follow, so that the next kernel inherits.
  - With systemd-boot the entries and /etc/kernel/cmdline are edited.
  - A boot loader, a default entry or a file that cannot be evaluated safely is refused, and nothing is
    changed.
attributes:
  check_mode:
    support: full
    description: RV(changes) is exactly what the real run returns; nothing is written anywhere.
  diff_mode:
    support: full
    description: Shows the files, and of a generated file the entry that boots.
  idempotent:
    support: full
    description: A second run changes nothing, and a run that was interrupted is completed.
  platform:
    platforms: linux
    support: full
    description: GRUB on Debian and Ubuntu, GRUB with boot loader entries on the RHEL family, systemd-boot.
options:
  tokens:
    description:
      - The kernel arguments, in order. Their order is kept, nothing is sorted or de-duplicated.
      - Only characters that neither a shell nor GRUB gives a meaning are accepted.
    type: list
    elements: str
    default: []
  keys:
    description: All argument names that are ours, those included that are to go.
    type: list
    elements: str
    default: []
  owned:
    description:
      - The arguments we put there before. Without it C(boot.owned) of /etc/firsttouch/plan.json.
      - With GRUB on Debian the drop-in itself says what is ours.
    type: list
    elements: str
  state:
    description: V(absent) takes all arguments of ours away; O(tokens) is then ignored.
    type: str
    choices: [present, absent]
    default: present
  on_conflict:
    description:
      - What to do about an argument of somebody else that contradicts ours.
      - V(replace) takes exactly that argument out of the places it is written in (files, boot entries, the
        environment block of GRUB), with the quotes kept as they are. They get their old text back when ours are
        taken away or do not contradict it any more, unless somebody has changed them since; until then it is in
        /var/lib/firsttouch/replaced.json. An entry that was made since from the others gets the argument too.
    type: str
    choices: [fail, replace]
    default: fail
  reserve_floor_bytes:
    description:
      - Bytes per node that huge pages on the complete command line must leave.
      - Without it 384 MiB or 5 % of the node, the larger.
    type: int
  sysroot:
    description:
      - Root of the tree to change. Anywhere but on V(/) no tool of the boot loader is run.
    type: path
    default: /
seealso:
  - module: firsttouch.host.kernel_cmdline_info
  - module: firsttouch.host.host_plan
author:
  - First Touch contributors (@firsttouch)
"""

EXAMPLES = r"""
- name: Reserve huge pages per node at the next boot
  firsttouch.host.kernel_cmdline:
    tokens: [default_hugepagesz=2M, hugepagesz=2M, 'hugepages=0:300,1:200']
    keys: [default_hugepagesz, hugepagesz, hugepages]
  register: boot

- name: Tell that a reboot is due
  ansible.builtin.debug:
    msg: "Due: {{ boot.reboot_due }}, foreign changes staged: {{ boot.foreign_staged }}"

- name: Take everything of ours off the command line
  firsttouch.host.kernel_cmdline:
    state: absent

- name: Prepare an image
  firsttouch.host.kernel_cmdline:
    sysroot: /srv/image
    tokens: ['isolcpus=managed_irq,domain,2-7', nohz_full=2-7]
"""

RETURN = r"""
bootloader:
  description: The back end.
  returned: success
  type: str
  sample: grub
changes:
  description: What is or would be changed, sorted.
  returned: success
  type: list
  elements: dict
  contains:
    resource:
      description: C(file:PATH) or C(token:TEXT).
      type: str
      sample: 'token:hugepages=0:300,1:200'
    before:
      description:
        - Before the change, null where it was absent. Of a generated file, our arguments in the entry that
          boots.
      type: str
    after:
      description: After it.
      type: str
generated:
  description:
    - Whether the boot loader's own files were made anew (or would be, in check mode). False on an offline
      tree.
  returned: success
  type: bool
backup:
  description: Where the boot loader's file that was replaced is kept; null where none was.
  returned: success
  type: str
  sample: /var/lib/firsttouch/grub.cfg.before
next_boot_line:
  description: The complete command line of the entry that will boot; null where there is no entry yet.
  returned: success
  type: str
reboot_due:
  description:
    - Whether what our arguments do differs between the running kernel and the next boot.
    - C(transparent_hugepage=) makes no reboot due, M(firsttouch.host.thp) sets the running kernel.
  returned: success
  type: bool
foreign_staged:
  description: Arguments that are not ours and differ between the running kernel and the next boot.
  returned: success
  type: list
  elements: str
replaced:
  description: Arguments of others that were replaced, with their places.
  returned: success
  type: list
  elements: dict
not_restored:
  description:
    - Arguments of others that were replaced and that O(state=absent) does not put back, because somebody
      has changed their file since.
  returned: success
  type: list
  elements: dict
memory:
  description:
    - What the memory guard compared, in bytes. RV(ignore:evaluated) is false where the memory of the host
      is not known.
  returned: success
  type: dict
boot_id:
  description: Identity of the running boot.
  returned: always
  type: str
reason:
  description:
    - Why it was refused, such as V(foreign_token), V(overridden_by_dropin), V(line_too_long),
      V(foreign_tokens_changed), V(unsupported_bootloader),
      V(memory_guard), V(unquoted_value_with_space), V(grubenv_full), V(unclear_entry), V(token_not_generated).
  returned: failure
  type: str
file:
  description: The file that is the cause.
  returned: failure
  type: str
line:
  description: The line that is the cause.
  returned: failure
  type: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.firsttouch.host.plugins.module_utils._boot_apply import change
from ansible_collections.firsttouch.host.plugins.module_utils._boot_report import boot_id
from ansible_collections.firsttouch.host.plugins.module_utils._boot_types import BootError
from ansible_collections.firsttouch.host.plugins.module_utils._files import refusal


def main() -> None:
    """Plan, and unless in check mode carry out."""
    module = AnsibleModule(
        argument_spec={
            "tokens": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "owned": {"type": "list", "elements": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "on_conflict": {"type": "str", "choices": ["fail", "replace"], "default": "fail"},
            "reserve_floor_bytes": {"type": "int"},
            "sysroot": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )

    def run(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        argv = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items()), *arguments]
        status, out, err = module.run_command(argv)
        return int(status), str(out), str(err)

    root = module.params["sysroot"]
    identity = boot_id(root)
    try:
        result = change(root, module.params, check=module.check_mode, run=run)
    except BootError as exc:
        details = {key: value for key, value in exc.as_dict().items() if key != "text"}
        module.fail_json(msg=str(exc), boot_id=identity, **details)
    except OSError as exc:
        module.fail_json(boot_id=identity, **refusal(exc, "io_error"))
    for row in result["not_restored"]:
        text = f"{row['token']} was taken out of {row['file']}, which somebody has changed since: it is not put back"
        module.warn(text)
    module.exit_json(boot_id=identity, **result)


if __name__ == "__main__":
    main()
