# SPDX-License-Identifier: GPL-3.0-or-later
"""The collector: what it records, what it never touches, and that a recording reads like its host."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.firsttouch.host.plugins.module_utils import _checks_units
from ansible_collections.firsttouch.host.plugins.module_utils._checks_host import Context
from ansible_collections.firsttouch.host.plugins.module_utils._collect import Limits, Recording, collect
from ansible_collections.firsttouch.host.plugins.module_utils._collect_scrub import Scrubber, same
from ansible_collections.firsttouch.host.plugins.module_utils._grub_default import read_default
from boot_cases import tree
from support import put, run_module
from verified_host import EVERYTHING, IRQBALANCE_GROUP, RELEASE, provisioned_host, thread, whole_host

UUID = "3f2b8e1c-9d47-4c11-8a55-0123456789ab"
MACHINE = "0123456789abcdef0123456789abcdef"


def unpack(recording: Recording, target: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(recording.archive)) as tar:
        if hasattr(tarfile, "tar_filter"):
            tar.extractall(target, filter="tar")
        else:
            tar.extractall(target)
    return target


def names(recording: Recording) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(recording.archive)) as tar:
        return {f"/{name}" for name in tar.getnames()}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A two-node host with a merged /usr, a masked sysctl file and a boot entry."""
    root = tmp_path / "host"
    put(root, "/proc/sys/kernel/hostname", "web17.prod.example.org\n")
    put(root, "/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    put(root, "/proc/sys/vm/swappiness", "60\n")
    put(root, "/proc/cmdline", f"root=UUID={UUID} ip=10.1.2.3::10.1.2.1 hugepages=0:4,1:4 isolcpus=2-3\n")
    put(root, "/sys/devices/system/cpu/online", "0-3\n")
    put(root, "/sys/devices/system/node/online", "0-1\n")
    for node in (0, 1):
        base = f"/sys/devices/system/node/node{node}"
        put(root, f"{base}/cpulist", f"{node * 2}-{node * 2 + 1}\n")
        put(root, f"{base}/meminfo", f"Node {node} MemTotal: 2097152 kB\n")
        put(root, f"{base}/hugepages/hugepages-2048kB/nr_hugepages", "4\n")
        for cpu in (node * 2, node * 2 + 1):
            (root / base.lstrip("/") / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")
    put(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
    put(root, "/sys/devices/virtual/dmi/id/sys_vendor", "VMware, Inc.\n")
    put(root, "/sys/devices/virtual/dmi/id/product_serial", "VMware-42 1d\n")
    (root / "sys/class/dmi").mkdir(parents=True)
    (root / "sys/class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    put(root, "/usr/lib/sysctl.d/50-default.conf", "kernel.sysrq = 16\n")
    (root / "lib").symlink_to("usr/lib")
    (root / "etc/sysctl.d").mkdir(parents=True)
    (root / "etc/sysctl.d/50-default.conf").symlink_to("/dev/null")
    put(root, "/etc/sysctl.conf", "vm.swappiness = 1\n")
    (root / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    put(root, f"/boot/loader/entries/{MACHINE}-6.1.0.conf", f"options root=UUID={UUID} quiet\n")
    put(root, "/etc/machine-id", MACHINE + "\n")
    put(
        root,
        "/etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann Other,,,:/home/ann:/bin/zsh\n",
    )
    put(root, "/etc/shadow", "root:$6$salt$hash:19000::::::\n")
    put(root, "/etc/grub.d/10_linux", "#!/bin/sh\n")
    (root / "etc/grub.d/10_linux").chmod(0o755)
    return root


def test_a_recording_reads_like_its_host(host: Path, tmp_path: Path) -> None:
    copy = unpack(collect(str(host)), tmp_path / "copy")
    for module in ("numa_topology_info", "hugepages_info"):
        there, here = (run_module(module, {"sysroot": str(root)}) for root in (copy, host))
        assert {**there, "invocation": None} == {**here, "invocation": None}
    topology = run_module("numa_topology_info", {"sysroot": str(copy)})["topology"]
    assert topology["virtualization"]["hypervisor"] == "vmware"
    assert [node["cpus"] for node in topology["nodes"]] == ["0-1", "2-3"]


def test_a_recording_of_systemd_boot_knows_what_boots_and_not_whose_it_is(tmp_path: Path) -> None:
    """The firmware's variables are UTF-16, and name entries by the id of the machine."""
    root = tree("debian-13-systemd-boot", tmp_path / "host")
    efivars = "/sys/firmware/efi/efivars"
    guid = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
    for name, value in (("Default", "@saved"), ("LastBooted", f"{MACHINE}-6.12.9+deb13-amd64.conf")):
        file = put(root, f"{efivars}/LoaderEntry{name}-{guid}", "")
        file.write_bytes(b"\x07\0\0\0" + f"{value}\0".encode("utf-16-le"))
    put(root, f"{efivars}/LoaderSystemToken-{guid}", "secret")
    put(root, f"{efivars}/LoaderInfo-{guid}", "cut off, and no UTF-16\n")
    recording = collect(str(root))
    copy = unpack(recording, tmp_path / "copy")
    machine = (copy / "etc/machine-id").read_text().strip()
    assert machine != MACHINE
    default = run_module("kernel_cmdline_info", {"sysroot": str(copy)})["default_entry"]
    assert default == f"{machine}-6.12.9+deb13-amd64.conf"
    booted = (copy / f"{efivars}/LoaderEntryLastBooted-{guid}".lstrip("/")).read_bytes()
    assert booted == b"\x07\0\0\0" + f"{default}\0".encode("utf-16-le")
    assert not {f"{efivars}/LoaderSystemToken-{guid}", "/boot/efi/loader/random-seed"} & names(recording)


def test_links_masks_and_modes_survive(host: Path, tmp_path: Path) -> None:
    copy = unpack(collect(str(host)), tmp_path / "copy")
    assert os.readlink(copy / "lib") == "usr/lib"
    assert os.readlink(copy / "etc/sysctl.d/50-default.conf") == "/dev/null"
    assert os.readlink(copy / "etc/sysctl.d/99-sysctl.conf") == "../sysctl.conf"
    assert (copy / "etc/sysctl.conf").read_text() == "vm.swappiness = 1\n"
    assert os.readlink(copy / "sys/devices/system/node/node1/cpu3") == "../../cpu/cpu3"
    assert os.access(copy / "etc/grub.d/10_linux", os.X_OK)
    assert not os.access(copy / "proc/cmdline", os.X_OK)


@pytest.mark.parametrize("merged", [True, False])
def test_a_recording_tells_which_shell_reads_the_settings_of_grub(merged: bool, tmp_path: Path) -> None:
    """Where /bin/sh is bash, as on RHEL and SUSE, += is no error."""
    root = tmp_path / "host"
    put(root, "/usr/bin/bash", "")
    if merged:
        (root / "bin").symlink_to("usr/bin")
    else:
        put(root, "/bin/bash", "")
    (root / "bin/sh").symlink_to("bash")
    put(root, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX+=" b"\n')
    copy = unpack(collect(str(root)), tmp_path / "copy")
    assert read_default(str(copy)).variables["GRUB_CMDLINE_LINUX"].text == "a b"


def test_nothing_that_identifies_the_host_is_in_it(host: Path) -> None:
    put(
        host,
        "/etc/default/grub",
        f'# web17\nGRUB_CMDLINE_LINUX="root=UUID={UUID} admin_password=hunter2 ip=10.1.2.3"\n',
    )
    put(host, "/boot/grub/grub.cfg", "password_pbkdf2 root grub.pbkdf2.sha512.10000.ABCDEF.012345\n")
    recording = collect(str(host))
    with tarfile.open(fileobj=io.BytesIO(recording.archive)) as tar:
        content = b"\n".join(
            member.name.encode() + ((tar.extractfile(member) or io.BytesIO()).read() if member.isfile() else b"")
            for member in tar.getmembers()
        ).decode()
    for word in (
        "web17",
        "example.org",
        UUID,
        MACHINE,
        "10.1.2",
        "hunter2",
        "ABCDEF",
        "Ann",
        "1d",
        "$6$",
        "/home",
    ):
        assert word not in content, word
    assert not {"/etc/shadow", "/proc/sys/kernel/hostname"} & names(recording)
    assert "hugepages=0:4,1:4 isolcpus=2-3" in content


def test_one_value_has_one_stand_in(host: Path, tmp_path: Path) -> None:
    copy = unpack(collect(str(host)), tmp_path / "copy")
    entry = next((copy / "boot/loader/entries").iterdir())
    machine = (copy / "etc/machine-id").read_text().strip()
    root = next(word for word in (copy / "proc/cmdline").read_text().split() if word.startswith("root="))
    assert entry.name == f"{machine}-6.1.0.conf"
    assert root == "root=UUID=00000000-0000-4000-8000-000000000001"
    assert root in entry.read_text()


def test_without_scrubbing_everything_is_as_it_was(host: Path, tmp_path: Path) -> None:
    copy = unpack(collect(str(host), scrub=False), tmp_path / "copy")
    assert (copy / "proc/cmdline").read_text() == (host / "proc/cmdline").read_text()
    assert json.loads((copy / "firsttouch-recording.json").read_text())["scrubbed"] is False


def test_special_files_neither_block_nor_get_in(host: Path) -> None:
    os.mkfifo(host / "etc/default-grub")
    folder = host / "etc/default/grub.d"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "10-fifo.cfg")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(host / "s"))
        os.rename(host / "s", folder / "20-socket.cfg")
        (folder / "30-loop.cfg").symlink_to("30-loop.cfg")
        (folder / "40-dir.cfg").mkdir()
        recording = collect(str(host))
    inside = {name for name in names(recording) if "/grub.d/" in name and "/etc/default" in name}
    assert inside <= {"/etc/default/grub.d/30-loop.cfg"}


def test_a_link_out_of_the_root_stays_inside(host: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("outside\n")
    (host / "etc/sysctl.d/60-out.conf").symlink_to(secret)
    (host / "etc/sysctl.d/61-up.conf").symlink_to("../../../../../" + str(secret).lstrip("/"))
    assert b"outside" not in collect(str(host)).archive
    copy = unpack(collect(str(host)), tmp_path / "copy")
    assert os.path.islink(copy / "etc/sysctl.d/60-out.conf")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(entries=5), "entries"),
        (Limits(total_bytes=64), "bytes"),
        (Limits(seconds=-1), "took"),
    ],
)
def test_a_limit_makes_it_incomplete_and_says_so(
    host: Path, tmp_path: Path, limits: Limits, why: str
) -> None:
    recording = collect(str(host), limits=limits)
    assert not recording.complete
    manifest = json.loads((unpack(recording, tmp_path / "copy") / "firsttouch-recording.json").read_text())
    assert why in manifest["stopped"] and manifest["complete"] is False


def close(monkeypatch: pytest.MonkeyPatch, root: Path, *paths: str) -> None:
    """PATHS below ROOT, and what is below them, are there and closed to who looks; root has no such files."""
    closed = tuple(str(root / path.lstrip("/")) for path in paths)

    def guarded(call: Any, depth: int) -> Any:
        def guard(path: Any, *args: Any, **kwargs: Any) -> Any:
            below = [str(path).startswith(f"{each}/") or (depth and str(path) == each) for each in closed]
            if any(below):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *args, **kwargs)

        return guard

    for name, itself in (("stat", False), ("readlink", False), ("open", True), ("listdir", True)):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), itself))


def test_what_could_not_be_read_is_not_absent_from_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later sysctl file that only root may read may win, and so may a boot entry."""
    root = tmp_path / "host"
    provisioned_host(root)
    put(root, "/etc/sysctl.d/zzz-x.conf", "vm.swappiness = 60\n")
    with monkeypatch.context() as patch:
        close(patch, root, "/etc/sysctl.d/zzz-x.conf", "/boot/grub")
        recording = collect(str(root))
    assert {"/etc/sysctl.d/zzz-x.conf", "/boot/grub", "/boot/grub/grub.cfg"} <= set(recording.skipped)
    rows = {name: row for (name, _layer), row in verified(unpack(recording, tmp_path / "copy")).items()}
    winner = rows["vm_sysctls.next_boot.vm.swappiness"]
    assert (winner["status"], winner["source"]) == ("not_evaluated", "/etc/sysctl.d/zzz-x.conf")
    booting = [row for name, row in rows.items() if name.startswith("boot.") and row["layer"] == "next_boot"]
    assert booting and not [row for row in booting if row["status"] == "pass" and row["intended"]]
    assert not [row for row in rows.values() if row["status"] == "error"]


def test_a_check_that_meets_what_was_not_recorded_asks_for_a_recording_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "host"
    provisioned_host(root)
    with monkeypatch.context() as patch:
        close(patch, root, "/proc/swaps")
        recording = collect(str(root))
    row = verified(unpack(recording, tmp_path / "copy"))["memory.swap.read", "running"]
    assert (row["reason"], row["source"]) == ("not_recorded", "/proc/swaps")
    assert "record it again, as root" in row["remedy"]


def test_what_nobody_understands_is_recorded_as_it_is(host: Path) -> None:
    put(host, "/sys/devices/system/cpu/isolated", "one\n")
    recording = collect(str(host))
    assert "/sys/devices/system/cpu/isolated" in names(recording) and recording.skipped == {}


def test_a_path_that_could_not_be_read_is_scrubbed_too(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = f"/boot/loader/entries/{MACHINE}-6.1.0.conf"
    with monkeypatch.context() as patch:
        close(patch, host, entry)
        recording = collect(str(host))
    (left,) = recording.skipped
    assert MACHINE not in left and left in names(recording)


@pytest.mark.parametrize("text", ['{"complete": false, "stopped": "took more than 60 s"}', "{cut off"])
def test_a_recording_that_is_not_whole_confirms_nothing(tmp_path: Path, text: str) -> None:
    provisioned_host(tmp_path)
    assert run_module("host_verify", {"sysroot": str(tmp_path)})["verdict"] == "pass"
    put(tmp_path, "/firsttouch-recording.json", text)
    result = run_module("host_verify", {"sysroot": str(tmp_path), "concerns": ["thp", "boot"], "layers": ["running"]})
    (row,) = [row for row in result["results"] if row["id"].startswith("plan.recording")]
    assert (row["status"], row["intended"], result["verdict"]) == ("not_evaluated", True, "incomplete")


def test_a_file_that_is_too_large_is_left_out_and_named(host: Path, tmp_path: Path) -> None:
    put(host, "/boot/grub/grub.cfg", "x" * 2000)
    recording = collect(str(host), limits=Limits(file_bytes=1000))
    assert recording.complete and "/boot/grub/grub.cfg" in recording.skipped
    copy = unpack(recording, tmp_path / "copy")
    assert os.readlink(copy / "boot/grub/grub.cfg") == "grub.cfg"


def test_the_same_host_gives_the_same_archive(host: Path) -> None:
    assert collect(str(host)).archive == collect(str(host)).archive


def test_an_empty_root_is_recorded_too(tmp_path: Path) -> None:
    recording = collect(str(tmp_path))
    assert recording.complete and names(recording) == {"/firsttouch-recording.json"}


def test_this_host_can_be_recorded(tmp_path: Path) -> None:
    recording = collect("/")
    assert recording.complete, recording.skipped
    copy = unpack(recording, tmp_path / "copy")
    here, there = (
        run_module("numa_topology_info", {"sysroot": str(root)})["topology"] for root in ("/", copy)
    )
    for key in (
        "source",
        "arch",
        "kernel_release",
        "page_size_bytes",
        "cpus",
        "l3",
        "node_lists",
        "virtualization",
    ):
        assert here[key] == there[key], key


def verified(root: Path, **more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The answers about ROOT without what can only be measured, by check and layer."""
    layers = ["configured", "next_boot", "running"]
    result = run_module("host_verify", {"sysroot": str(root), "layers": layers, **more})
    assert not result.get("failed"), result
    return {(row["id"], row["layer"]): row for row in result["results"]}


def test_a_recording_of_this_host_verifies_like_this_host(tmp_path: Path) -> None:
    """Only who has files open on a hugetlbfs is no part of a recording."""
    intent = {
        "hugepages": [{"size": "2M", "count": 0}],
        "vm_sysctls": {"vm.swappiness": 60},
        "rt_runtime_us": 950000,
        "numa_balancing": False,
        "thp": "madvise",
        "conflicting_services": "report",
    }

    def statuses(root: Path) -> dict[tuple[str, str], str]:
        rows = verified(root, intent=intent)
        return {key: row["status"] for key, row in rows.items() if not key[0].startswith("hugepages.stale_files")}

    # Pools and services change while others test on this machine: one of three pairs has to be of one moment.
    for attempt in range(3):
        here = statuses(Path("/"))
        there = statuses(unpack(collect("/"), tmp_path / f"copy{attempt}"))
        if here == there:
            break
    assert len(here) > 25 and here == there


def test_threads_packages_and_drivers_are_recorded_as_far_as_they_are_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "host"
    provisioned_host(root)
    (root / "etc/apt").mkdir()
    status = "Package: linux-image-{0}\nStatus: install ok {1}\nVersion: 6.12.1\nDescription: kernel\n of x\n"
    ssh = "Package: openssh-server\nStatus: install ok installed\nVersion: 1\n"
    put(root, "/var/lib/dpkg/status", "\n".join((status.format(RELEASE, "half-configured"), ssh)))
    put(root, f"/var/lib/dkms/nvidia/550.1/{RELEASE}/x86_64/module/nvidia.ko", "elf")
    put(root, "/sys/module/nvidia/version", "550.0\n")
    thread(root, 700, "stranger", 1)
    put(root, "/proc/700/cgroup", "0::/user.slice/x\n")
    thread(root, 701, "elsewhere", 0)
    recording = collect(str(root))
    copy = unpack(recording, tmp_path / "copy")
    before, after = verified(root), verified(copy)
    changed = {key[0] for key in before.keys() | after.keys() if before[key]["status"] != after[key]["status"]}
    assert changed == {"hugepages.stale_files"}
    assert "LANG" not in (copy / "proc/612/environ").read_text()
    for key in ("cpu_isolation.threads", "boot.packages", "boot.driver.nvidia", "boot.driver.nvidia.loaded"):
        (mine,) = [row for (name, _layer), row in after.items() if name == key]
        (theirs,) = [row for (name, _layer), row in before.items() if name == key]
        assert mine == theirs and mine["status"] != "not_evaluated", key
    found = names(recording)
    assert "/proc/700/task/700/stat" in found and not [name for name in found if name.startswith("/proc/701")]
    assert "openssh" not in (copy / "var/lib/dpkg/status").read_text()


# What takes part in a host's name in a tree, and must not be taken out of all its files.
HOSTNAMES = (
    *("web17.prod.example.org", "boot", "service", "root", "policy.lan", "hugepages", "handlers.lan"),
    "private",
)


@pytest.mark.parametrize("hostname", HOSTNAMES)
@pytest.mark.parametrize("origin", ["plan.json", "variables"])
def test_a_recording_of_all_that_is_ours_is_judged_as_its_host(tmp_path: Path, origin: str, hostname: str) -> None:
    """Units, files, kubelet, boot arguments: what the scrubber takes must not be what a check compares."""
    root = tmp_path / "host"
    whole_host(root)
    put(root, "/proc/sys/kernel/hostname", f"{hostname}\n")
    more = {"intent": EVERYTHING} if origin == "variables" else {}
    before = verified(root, **more)
    assert {row["status"] for row in before.values() if row["intended"]} == {"pass"}
    after = verified(unpack(collect(str(root)), tmp_path / "copy"), **more)
    unlike = {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if _verdict_of(before.get(key)) != _verdict_of(after.get(key)) and key[0] != "hugepages.stale_files"
    }
    if origin == "variables":  # whether the addresses of both are the same cannot be told, and is not told
        was, now = unlike.pop(("plan.drift", "configured"))
        assert was and now and (was["status"], now["status"], now["reason"]) == ("pass", "not_evaluated", "scrubbed")
    assert not unlike


def _verdict_of(row: dict[str, Any] | None) -> Any:
    return row and [row[key] for key in ("status", "reason", "expected", "observed", "source", "intended")]


@pytest.mark.parametrize("origin", ["plan.json", "variables"])
@pytest.mark.parametrize(
    ("path", "old", "new", "check"),
    [
        ("/etc/systemd/system/firsttouch-server@far.service", "PrivateTmp=yes", "PrivateTmp=no", "units."),
        ("/etc/systemd/system/firsttouch-server@far.service", "=/srv/10.1.2.3/", "=/srv/10.1.2.3/x/", "units."),
        ("/etc/systemd/system/firsttouch-weights@toy.service", "RemoveIPC=yes\n", "", "units."),
        ("/etc/firsttouch/models/toy.json", "0123456789ab/toy", "0123456789ab/toy2", "runtime.file."),
        ("/etc/firsttouch/servers/far.json", "tcp://10.0.0.1:5555", "tcp://10.0.0.1:5556", "runtime.file."),
        ("/etc/firsttouch/servers/far.json", "tcp://10.0.0.1:5555", "tcp://10.0.0.2:5555", "runtime.file."),
        ("/etc/firsttouch/servers/policy.json", "m.secret_token:serve", "m.secret_token:other", "runtime.file."),
    ],
)
def test_what_was_changed_by_hand_shows_in_a_recording_too(
    tmp_path: Path, path: str, old: str, new: str, check: str, origin: str
) -> None:
    root = tmp_path / "host"
    whole_host(root)
    text = (root / path.lstrip("/")).read_text()
    assert old in text
    put(root, path, text.replace(old, new))
    more = {"intent": EVERYTHING} if origin == "variables" else {}
    for tree_ in (root, unpack(collect(str(root)), tmp_path / "copy")):
        found = [row for row in verified(tree_, **more).values() if row["status"] == "fail"]
        assert [(row["source"], row["reason"]) for row in found] == [(path, "changed_by_hand")]
        assert found[0]["id"].startswith(check)


def test_in_a_recording_that_is_not_scrubbed_each_address_counts(tmp_path: Path) -> None:
    """Other variables than those of plan.json: where nothing has a stand-in, another address is another address."""
    root = tmp_path / "host"
    whole_host(root)
    policy, far = EVERYTHING["servers"]
    intent = {**EVERYTHING, "servers": [policy, {**far, "address": "tcp://10.0.0.2:5555"}]}
    rows = verified(unpack(collect(str(root), scrub=False), tmp_path / "copy"), intent=intent)
    assert rows["runtime.file.servers/far.json", "configured"]["status"] == "fail"
    assert rows["plan.drift", "configured"]["status"] == "warn"


def test_the_kubelet_is_recorded_without_addresses(tmp_path: Path) -> None:
    root = tmp_path / "host"
    put(root, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n")
    put(root, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nEnvironment=A=1\n")
    put(root, "/var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--node-ip=10.9.8.7"\n')
    put(root, "/var/lib/kubelet/config.yaml", "clusterDNS:\n- 10.96.0.10\ncpuManagerPolicy: static\n")
    put(root, "/var/lib/kubelet/pki/kubelet.key", "PRIVATE KEY\n")
    put(root, "/etc/kubernetes/kubelet.conf", "token: abc\n")
    recording = collect(str(root))
    copy = unpack(recording, tmp_path / "copy")
    found = names(recording)
    assert {"/etc/systemd/system/kubelet.service", "/var/lib/kubelet/config.yaml"} <= found
    assert not {"/var/lib/kubelet/pki/kubelet.key", "/etc/kubernetes/kubelet.conf"} & found
    texts = "".join((copy / f"var/lib/kubelet/{name}").read_text() for name in ("config.yaml", "kubeadm-flags.env"))
    assert "static" in texts and "10.96.0.10" not in texts and "10.9.8.7" not in texts


@pytest.mark.parametrize("folder", ["/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"])
def test_the_daemon_and_our_units_that_run_are_recorded(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "host"
    provisioned_host(root)
    (root / IRQBALANCE_GROUP[1:] / "cgroup.procs").unlink()
    (root / IRQBALANCE_GROUP[1:]).rmdir()
    (root / IRQBALANCE_GROUP[1:]).parent.rmdir()
    put(root, f"{folder}/irqbalance.service/cgroup.procs", "612\n")
    units = ("firsttouch-hugepages.service", "firsttouch-serve@a.service")
    (root / "run/systemd/units").mkdir(parents=True)
    for unit in units:
        (root / f"run/systemd/units/invocation:{unit}").symlink_to("0123")
    copy = unpack(collect(str(root)), tmp_path / "copy")
    for where in (root, copy):
        row = verified(where)["cpu_isolation.irqbalance.running", "running"]
        assert (row["status"], row["observed"]) == ("pass", {"banned": "1,3"})
        assert {_checks_units._active(Context({}, str(where)), unit).status for unit in units} == {"pass"}
    assert (copy / "proc/612/environ").read_text()


def test_of_our_directory_only_our_own_files_are_recorded(tmp_path: Path) -> None:
    ours = {"plan.json", "irqbalance.env", "models/m.json", "servers/s.json", "samplers/s.env"}
    for name in (*ours, "tls/server.key", "server.key", "models/m.key", "plan.json.bak"):
        put(tmp_path, f"/etc/firsttouch/{name}", "{}")
    found = names(collect(str(tmp_path))) - {"/firsttouch-recording.json"}
    assert found == {f"/etc/firsttouch/{name}" for name in ours}


def test_a_part_of_the_threads_is_not_recorded_as_if_it_were_all(tmp_path: Path) -> None:
    root = tmp_path / "host"
    provisioned_host(root)
    put(root, "/proc/700/task/700/stat", "not a thread at all\n")
    recording = collect(str(root))
    assert not [name for name in names(recording) if "/task/" in name]
    assert recording.skipped["/proc/*/task"] == "unreadable: /proc/700/task/700/stat"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("/etc/default/grub", "a 127.0.0.1 and 0.0.0.0", "a 127.0.0.1 and 0.0.0.0"),
        ("/etc/default/grub", "version 5.14.0-427.13.1.el9", "version 5.14.0-427.13.1.el9"),
        ("/etc/default/grub", "ip=[fe80::1%eth0]", "ip=[2001:db8::1%eth0]"),
        ("/etc/default/grub", "at 12:34:56", "at 12:34:56"),
        ("/etc/default/grub", "crashkernel=1G-4G:64M,4G-:128M", "crashkernel=1G-4G:64M,4G-:128M"),
        (
            "/proc/cmdline",
            "vfio-pci.ids=10de:1eb8 pci=0000:00:1f.2",
            "vfio-pci.ids=10de:1eb8 pci=0000:00:1f.2",
        ),
        ("/proc/cmdline", "ifname=eth0:52:54:00:12:34:56", "ifname=eth0:02:00:00:00:00:01"),
        (
            "/proc/cmdline",
            "rd.luks.key=/k api_token='a b' quiet",
            "rd.luks.key=removed api_token=removed quiet",
        ),
        (
            "/etc/firsttouch/plan.json",
            '{"api_token": "a \\" b", "tokens": ["quiet"], "Password": "x",\n"n": 1}',
            '{"api_token": "removed", "tokens": ["quiet"], "Password": "removed",\n"n": 1}',
        ),
        # What has such a word in its name and is no secret.
        *(
            (path, text, text)
            for path in ("/etc/systemd/system/firsttouch-server@a.service", "/etc/firsttouch/plan.json")
            for text in (
                "PrivateTmp=yes\nPrivateDevices=no\nPrivateNetwork=yes\nPrivateUsers=self\n",
                "LoadCredential=\nTokenBucket\nsystemctl status firsttouch-server@a.bc.service",
            )
        ),
        ("/boot/config-6.1", "CONFIG_SECRETMEM=y\nCONFIG_TOKENS=m\n", "CONFIG_SECRETMEM=y\nCONFIG_TOKENS=m\n"),
        ("/etc/default/kubelet", "--authn-token-webhook=true -v=2", "--authn-token-webhook=true -v=2"),
        (
            "/etc/firsttouch/plan.json",
            '{"firsttouch-weights@tokenizer.service": "[Unit]\\nX=--token a\\n", "models/my-token.json": "{}"}',
            '{"firsttouch-weights@tokenizer.service": "[Unit]\\nX=--token removed\\n", "models/my-token.json": "{}"}',
        ),
        ("/proc/cmdline", "ro secretmem.enable=0 tokenizer=x", "ro secretmem.enable=0 tokenizer=x"),
        ("/etc/systemd/system/x.service", "ExecStart=/x --tokenizer /srv/a -v", "ExecStart=/x --tokenizer /srv/a -v"),
        ("/etc/x.json", '{"secretmem.enable": "0", "tokenizer": "a"}', '{"secretmem.enable": "0", "tokenizer": "a"}'),
        ("/etc/default/x", "TOKENIZERS_PARALLELISM=4\n", "TOKENIZERS_PARALLELISM=4\n"),
        *(
            (path, text, text)
            for path in ("/etc/firsttouch/plan.json", "/var/lib/firsttouch/runtime.json")
            for text in ('{"special_tokens_map.json": "sha256:ab"}', '{"firsttouch-weights@secret.service": "x"}')
        ),
        # What is one.
        *(
            ("/etc/default/x", f"{key}=SEKRET123", f"{key}=removed")
            for key in (
                *("tokenisation_key", "tokenizer.key", "TOKENIZER_AUTH", "tokenizer_hf_token", "tokenissuer"),
                *("secretmember", "my_secretmem", "secretmem.key", "secretmem-x", "x-api-key"),
            )
        ),
        ("/etc/systemd/system/x.service", "ExecStart=/x --api-key abc -v", "ExecStart=/x --api-key removed -v"),
        *(
            (path, f'{{"{key}": "SEKRET123"}}', f'{{"{key}": "removed"}}')
            for path in ("/etc/kubernetes/kubelet.json", "/var/lib/kubelet/config", "/etc/firsttouch2/x.json")
            for key in ("credentials.json", "secret.service", "token.env")
        ),
        ("/etc/systemd/system/x.service", "ExecStart=/x --tokens a,b -v", "ExecStart=/x --tokens removed -v"),
        ("/etc/default/kubelet", "X=--token abc.def -v=2", "X=--token removed -v=2"),
        ("/etc/default/kubelet", 'X="--token \'a b\' -v=2"', 'X="--token removed -v=2"'),
        ("/etc/default/kubelet", "HTTPS_PROXY=http://ann:pw1@proxy:3128", "HTTPS_PROXY=http://removed@proxy:3128"),
        ("/proc/cmdline", "netroot=iscsi:ann:pw1@san::3260", "netroot=iscsi:removed@san::3260"),
        ("/etc/default/grub", "AWS_SECRET_ACCESS_KEY=a/b+c x", "AWS_SECRET_ACCESS_KEY=removed x"),
        (
            "/etc/systemd/system/x.service",
            'Environment="DB_PASSWORD=my \\"pass\\" phrase" "A=b c" \'API_KEY=d "e\' F=g',
            'Environment="DB_PASSWORD=removed" "A=b c" \'API_KEY=removed\' F=g',
        ),
        ("/etc/default/grub", 'X="rd.luks.key=/k ro hugepages=4"', 'X="rd.luks.key=removed ro hugepages=4"'),
        ("/etc/default/grub", "# id AKIAABCDEFGHIJKLMNOP", "# id removed"),
        ("/etc/default/grub", "curl -H 'Authorization: Basic YW5uOnB3MQ=='", "curl -H 'Authorization: Basic removed'"),
        ("/etc/default/grub", "HF=hf_abcdefghijklmnopqrstuv", "HF=removed"),
        ("/etc/tuned/x/tuned.conf", "password = correct horse\nvm.x = 1", "password = removed\nvm.x = 1"),
        ("/var/lib/kubelet/config.yaml", "a: 1\n  token: b c\nd: 2", "a: 1\n  token: removed\nd: 2"),
        ("/etc/sysctl.d/x.conf", "net.ipv4.tcp_fastopen_key=1-2-3-4", "net.ipv4.tcp_fastopen_key=removed"),
        ("/etc/default/grub", "# by Ann <ann.other@example.com>", "# by Ann <somebody@example.org>"),
        # A text of JSON ends where it ends itself, and its lines where they do.
        (
            "/etc/firsttouch/plan.json",
            '{"unit": "Environment=API_TOKEN=abc\\nPrivateTmp=yes\\n", "at": "fe80::1\\nfe80::2", "n": 1}',
            '{"unit": "Environment=API_TOKEN=removed\\nPrivateTmp=yes\\n", "at": "2001:db8::1\\n2001:db8::2", "n": 1}',
        ),
        ("/etc/grub.d/40_custom", "a\n  password root s3cret\nb", "a\n  password root removed\nb"),
        (
            "/boot/grub/grub.cfg",
            "password_pbkdf2 root grub.pbkdf2.sha512.10000.AB\n",
            "password_pbkdf2 root grub.pbkdf2.removed\n",
        ),
        (
            "/etc/grub.d/40_custom",
            "x\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\ny",
            "x\nremoved\ny",
        ),
        ("/etc/grub.d/40_custom", "x\n-----BEGIN CERTIFICATE-----\nMIIE\n", "x\nremoved"),
        (
            "/usr/lib/systemd/system/kubelet.service.d/10-x.conf",
            "ExecStart=/usr/bin/kubelet --node-ip=10.20.30.40,fd00::7",
            "ExecStart=/usr/bin/kubelet --node-ip=192.0.2.1,2001:db8::2",
        ),
        ("/usr/local/lib/sysctl.d/x.conf", "# of 10.20.30.40", "# of 192.0.2.1"),
        ("/proc/cmdline", "root=PARTUUID=1a2b3c4d-02", "root=PARTUUID=0000-0001"),
        ("/proc/cpuinfo", "Serial\t\t: 00000000abcdef01", "Serial\t\t: 0"),
        ("/proc/cmdline", "x=db-4.lan db-4 db-4-x", "x=host host db-4-x"),
        ("/proc/version", "Linux version 6.1 (me@pc.lan) (gcc)", "Linux version 6.1 (builder@host) (gcc)"),
        ("/sys/devices/system/cpu/online", "10.1.2.3", "10.1.2.3"),
        ("/etc/passwd", "root:x:0:0:r:/root:/bin/sh\nann:x:1000:1000:::\n", "root:x:0:0:::\n"),
        ("/etc/group", "adm:x:4:ann,bob\nann:x:1000:\n", "adm:x:4:\n"),
        (
            "/etc/fstab",
            "# web\nUUID=ABCD-1234 /boot/efi vfat rw 0 1\nnas:/x /data nfs rw 0 0\nh /h hugetlbfs rw 0 0\n",
            "UUID=0000-0001 /boot/efi vfat rw 0 1\nh /h hugetlbfs rw 0 0\n",
        ),
        (
            "/proc/self/mounts",
            "o / overlay rw,lowerdir=/a:/b 0 0\nx /h/deep hugetlbfs rw 0 0\nt /h tmpfs rw 0 0\nt /o tmpfs rw 0 0\n",
            "o / overlay rw,lowerdir=removed 0 0\nx /h/deep hugetlbfs rw 0 0\nt /h tmpfs rw 0 0\n",
        ),
    ],
)
def test_scrubbing(path: str, before: str, after: str) -> None:
    assert Scrubber(["db-4.lan", "debian"], "6.1.0-18-amd64 (Debian)").text(path, before) == after


@pytest.mark.parametrize(
    "piece",
    ["a", "token", "tokenizer", "secretmem", "-", "--token", "my.token-", "secret_", "\"token", "a\n", "= "],
)
def test_a_line_of_many_letters_takes_no_more_time_for_each(piece: str) -> None:
    """A file may have 1 MiB, and one without blanks is one word: by the square of its length it would take hours."""
    text = piece * (1 << 19) if len(piece) < 3 else piece * (1 << 16)
    assert Scrubber(["web17"]).text("/etc/default/grub", f"{text}\nTOKEN=abc\n") == f"{text}\nTOKEN=removed\n"


@pytest.mark.parametrize(
    ("recorded", "text", "answer"),
    [
        ("/srv/host/m", "/srv/infer1/m", True),
        ("/srv/host/m 192.0.2.1 host", "/srv/infer1/m 10.1.2.3 infer1.example.org", True),
        ("host a host.service host:1", "infer1.example.org a infer1.service INFER1:1", True),
        ("host at host.b", "infer1.example.org at infer1.b", True),
        ("host of host", "infer1 of example.org", True),
        ("/srv/host/m", "/srv/host/m", True),
        ("/srv/host/m", "/srv/infer1/n", False),
        ("/srv/host/m /host", "/srv/infer1/m /infer2/x", False),
        ("/srv/host-1/m", "/srv/infer1/m", False),
        ("/srv/m", "/srv/infer1/m", False),
        ("host", "infer1 ", False),
        ("/srv/host/m", "/srv/hugepages/m", False),  # a name that no recording has a stand-in for
    ],
)
def test_a_text_is_compared_whatever_the_host_is_called(recorded: str, text: str, answer: bool) -> None:
    assert same("/etc/firsttouch/x", recorded, text) is answer


def test_the_module_returns_the_archive(host: Path) -> None:
    result: dict[str, Any] = run_module("host_collect", {"sysroot": str(host), "dest": "x"})
    assert result["complete"] and result["entries"] > 10 and result["archive"]
    assert result["changed"] is False
