# SPDX-License-Identifier: GPL-3.0-or-later
"""The role kubelet in a play of its own, on this machine, in a mount namespace where nothing that it writes is kept.

There is no systemd in it that has a kubelet, so files alone are changed; the order in which hooks, file and state come
is the role's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = "/etc/kubernetes/kubelet.conf.d/zz-firsttouch.conf"
STATE = "/var/lib/kubelet/cpu_manager_state"
PLAYS = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Plan what the kubelet keeps to
      ansible.builtin.include_role: {name: firsttouch.host._plan, public: true}
      vars: {__firsttouch_sections: [cpu_isolation]}
- hosts: all
  gather_facts: false
  roles: [firsttouch.host.kubelet]
"""
HOOK = f"- ansible.builtin.shell: echo {{name}} $(ls {FILE} {STATE} 2>/dev/null) >> {{log}}\n"
UNIT = (
    "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml "
    "--config-dir=/etc/kubernetes/kubelet.conf.d\n"
)
CONFIG = (
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nkubeReserved:\n  memory: 100Mi\n"
)
# Writes below these go to memory, and are gone with the namespace. /run/systemd is hidden: the machine's own systemd
# must not be asked to stop a kubelet.
SCRIPT = """
set -e
mount -t tmpfs tmpfs {top}
for folder in etc var/lib usr/lib/systemd; do
  kept={top}/$(echo $folder | tr / _); mkdir -p $kept/upper $kept/work
  mount -t overlay overlay -o lowerdir=/$folder,upperdir=$kept/upper,workdir=$kept/work /$folder
done
if [ -d /run/systemd ]; then mount -t tmpfs tmpfs /run/systemd; fi
exec {python} {steps}
"""


def namespace(tmp_path: Path, steps: Path) -> subprocess.CompletedProcess[str]:
    top = tmp_path / "kept"
    top.mkdir()
    script = SCRIPT.format(top=top, python=sys.executable, steps=steps)
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, check=False
    )


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Skips where there can be no such namespace."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can have a mount namespace of its own here")
    probe = tmp_path / "probe.py"
    probe.write_text("")
    if namespace(tmp_path, probe).returncode:
        pytest.skip("this kernel or container allows no overlay mounts")
    (tmp_path / "kept").rmdir()
    return tmp_path


def test_drain_write_uncordon_and_back(room: Path, collections: Path) -> None:
    """Undrained: refused, unchanged. Then hook, file, state, hook; the second time nothing; absent takes it away.

    Undrained is also a host of a rollout that ran no hook on it, whatever its variables say. Without the variable the
    role leaves what somebody has changed.
    """
    (room / "play.yml").write_text(PLAYS)
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "firsttouch_isolated_cpus": "1",
    }
    host["firsttouch_kubelet"] = "present"
    (room / "hosts.json").write_text(json.dumps({"all": {"hosts": {"node": host}}}))
    for name in ("before", "after"):
        (room / f"{name}.yml").write_text(HOOK.format(name=name, log=room / "kept" / "hooks"))
    steps = room / "steps.py"
    steps.write_text(STEPS.format(room=str(room), unit=UNIT, config=CONFIG, file=FILE, state=STATE))
    os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(collections)
    done = namespace(room, steps)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["undrained"] == {"status": 2, "reason": True, "file": False, "state": True, "hooks": []}
    for name in ("null", "elsewhere"):
        assert seen[name] == seen["undrained"], name
    assert seen["check"] == {"status": 0, "reason": False, "file": False, "state": True, "hooks": []}
    hooks = [f"before {STATE}", f"after {FILE}"]
    assert seen["real"] == {"status": 0, "reason": False, "file": True, "state": False, "hooks": hooks}
    assert seen["again"] == {"status": 0, "reason": False, "file": True, "state": False, "hooks": hooks}
    assert seen["again_changed"] == 0
    assert seen["unset"] == seen["again"] and seen["unset_changed"] == 0
    assert seen["absent"] == {"status": 0, "reason": False, "file": False, "state": False, "hooks": hooks}
    assert not Path(FILE).exists()


STEPS = """
import json, os, re, subprocess
from pathlib import Path

ROOM = {room!r}
for path, text in (("/usr/lib/systemd/system/kubelet.service", {unit!r}), ("/var/lib/kubelet/config.yaml", {config!r}),
                   ({state!r}, '{{"policyName": "none"}}')):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
Path({file!r}).parent.mkdir(parents=True)
log = Path(ROOM, "kept", "hooks")
HOOKS = ["-e", f"firsttouch_hook_before={{ROOM}}/before.yml", "-e", "firsttouch_hook_after=after.yml"]
NULL = ["-e", '{{"firsttouch_hook_before": null, "firsttouch_hook_after": null}}']
NO_HOOK_RAN = {{"__firsttouch_orchestrated": True, "__firsttouch_hooks": {{"before": "", "after": "", "failed": ""}}}}
seen = {{}}
for name, words in (("undrained", []), ("null", NULL), ("elsewhere", [*HOOKS, "-e", json.dumps(NO_HOOK_RAN)]),
                    ("check", [*HOOKS, "--check"]), ("real", HOOKS), ("again", HOOKS),
                    ("unset", [*HOOKS, "-e", '{{"firsttouch_kubelet": null}}']),
                    ("absent", [*HOOKS, "-e", "firsttouch_kubelet=absent"])):
    if name == "unset":
        Path({file!r}).write_text(Path({file!r}).read_text() + "# somebody's\\n")
    done = subprocess.run(["ansible-playbook", "-i", "hosts.json", "play.yml", *words], cwd=ROOM, capture_output=True,
                          text=True, env={{**os.environ, "ANSIBLE_NOCOLOR": "1"}})
    print(done.stdout, done.stderr)
    changed = re.search(r"changed=(\\d+)", done.stdout)
    seen[name + "_changed"] = int(changed[1]) if changed else None
    seen[name] = {{
        "status": done.returncode, "reason": "not_drained" in done.stdout, "file": Path({file!r}).exists(),
        "state": Path({state!r}).exists(),
        "hooks": [" ".join(line.split()) for line in log.read_text().splitlines()] if log.exists() else [],
    }}
print(json.dumps(seen))
"""
