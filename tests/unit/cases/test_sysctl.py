# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded sysctl troubles, through the public modules; then neighbours of each that were not recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support import CASES, case_expected, put, run_module, sysroot_from_tsv


def lay_out(root: Path, case: str) -> Path:
    """The files of CASE below ROOT; NAME.symlink holds the target of a link."""
    folder = CASES / case
    for file in sorted(folder.rglob("*")):
        path = f"/{file.relative_to(folder)}"
        if not file.is_file() or not path.startswith(("/etc/", "/usr/", "/run/")):
            continue
        if path.endswith(".symlink"):
            link = root / path[1 : -len(".symlink")]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.read_text().strip())
        else:
            put(root, path, file.read_text())
    if (folder / "proc.tsv").is_file():
        sysroot_from_tsv(root, folder / "proc.tsv")
    return root


def info(root: Path, want: dict[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    result = run_module("sysctl_info", {"sysroot": str(root), "want": want or {}, **args})
    assert not result.get("failed"), result
    return result


def test_order_by_bytes(tmp_path: Path) -> None:
    expected = case_expected("sysctl-dropin-order-99-vs-999")
    result = info(lay_out(tmp_path, "sysctl-dropin-order-99-vs-999"))
    final = {key: row["boot_value"] for key, row in result["sysctls"].items()}
    assert {"order": result["order"], "masked": result["masked"], "final": final} == expected


def test_conf_file_beats_dropins(tmp_path: Path) -> None:
    case = "sysctl-conf-beats-dropins-procps"
    row = info(lay_out(tmp_path, case), {"vm.swappiness": 1})["sysctls"]["vm.swappiness"]
    got = {
        "boot_value": {"vm.swappiness": row["boot_value"]},
        "winner": row["winner"],
        "verdict": row["verdict"],
    }
    assert got == case_expected(case)
    assert (row["procps_value"], row["reason"], row["line"]) == ("60", "overridden_by", 1)


def test_conf_file_beats_dropins_is_refused(tmp_path: Path) -> None:
    root = lay_out(tmp_path, "sysctl-conf-beats-dropins-procps")
    path = "/etc/sysctl.d/90-hugellm-firsttouch.conf"
    args = {"sysroot": str(root), "values": {"vm.swappiness": 1}, "path": path}
    result = run_module("sysctl_dropin", args)
    assert result["failed"]
    assert result["reason"] == "overridden_by"
    assert result["file"] == "/etc/sysctl.conf"
    assert not (root / path[1:]).exists()


def test_masked_by_dev_null(tmp_path: Path) -> None:
    case = "sysctl-masked-by-dev-null"
    root = lay_out(tmp_path, case)
    result = info(root)
    final = {key: row["boot_value"] for key, row in result["sysctls"].items()}
    assert {"final": final, "masked": result["masked"]} == case_expected(case)
    assert result["order"] == []
    written = run_module(
        "sysctl_dropin",
        {"sysroot": str(root), "values": {"vm.swappiness": 1}, "path": "/etc/sysctl.d/50-default.conf"},
    )
    assert written["failed"]
    assert written["reason"] == "symlink"
    assert (root / "etc/sysctl.d/50-default.conf").is_symlink()


def test_missing_key(tmp_path: Path) -> None:
    case = "sysctl-missing-key"
    want = {"vm.extra_free_kbytes": 5242880, "vm.swappiness": 10, "vm.zone_reclaim_mode": 0}
    root = lay_out(tmp_path, case)
    rows = info(root, want)["sysctls"]
    names = {"verdict": "verdict", "reason_class": "reason"}
    expected = case_expected(case)
    got = {key: {name: rows[key][names[name]] for name in expected[key]} for key in expected}
    assert got == expected
    refused = run_module("sysctl_dropin", {"sysroot": str(root), "values": want})
    assert refused["failed"]
    assert refused["reason"] == "unknown_key"
    assert refused["names"] == ["vm.extra_free_kbytes"]
    assert not (root / "etc/sysctl.d").exists()
    optional = ["vm.extra_free_kbytes"]
    assert info(root, want, optional=optional)["sysctls"]["vm.extra_free_kbytes"]["verdict"] == "skip"
    done = run_module("sysctl_dropin", {"sysroot": str(root), "values": want, "optional": optional})
    assert done["sysctls"] == {
        "vm.extra_free_kbytes": "unsupported",
        "vm.swappiness": "applied",
        "vm.zone_reclaim_mode": "applied",
    }
    assert "extra_free" not in (root / "etc/sysctl.d/zz-firsttouch.conf").read_text()


def test_ratio_zeroed_by_bytes(tmp_path: Path) -> None:
    case = "sysctl-ratio-zeroed-by-bytes"
    row = info(lay_out(tmp_path, case), {"vm.dirty_ratio": 10})["sysctls"]["vm.dirty_ratio"]
    expected = case_expected(case)
    got = {name: row[name] for name in expected}
    got["file"] = got["file"].lstrip("/")
    assert got == expected
    assert row["reason"] == "counterpart_set"


def test_unrelated_key(tmp_path: Path) -> None:
    case = "sysctl-unrelated-key-breaks-reload"
    expected = case_expected(case)
    root = lay_out(tmp_path, case)
    missing = re.findall(r"cannot stat /proc/sys/(\S+):", (CASES / case / "reload.txt").read_text())
    assert len(missing) == len(expected["warnings"])
    put(root, "/etc/sysctl.d/50-bridge.conf", "".join(f"{key} = 1\n" for key in missing))
    put(root, "/etc/sysctl.d/90-hugellm.conf", "vm.swappiness = 1\n")
    result = info(root, {"vm.swappiness": 1})
    assert {"verdict": result["verdict"], "warnings": result["foreign_unsupported"]} == expected
    assert result["sysctls"]["vm.swappiness"]["verdict"] == "pass"
    values = {"vm.swappiness": 1}
    assert run_module("sysctl_dropin", {"sysroot": str(root), "values": values})["sysctls"] == {
        "vm.swappiness": "applied"
    }


@pytest.mark.parametrize(
    ("names", "winner"),
    [
        (["9-a.conf", "10-b.conf"], "9-a.conf"),
        (["99-a.conf", "99_b.conf"], "99_b.conf"),
        (["zz.conf", "Z9.conf"], "zz.conf"),
        (["zz-a.conf", "zz.conf"], "zz.conf"),
        (["Zz.conf", "aa.conf"], "aa.conf"),
        (["zz.conf", "\u00e9.conf"], "\u00e9.conf"),
        (["50-a.conf", ".99-hidden.conf"], "50-a.conf"),
        (["50-a.conf", "99-a.conf.dpkg-old"], "50-a.conf"),
        (["50-a.conf", "99-a.CONF"], "50-a.conf"),
    ],
)
def test_name_that_wins(tmp_path: Path, names: list[str], winner: str) -> None:
    for name in names:
        put(tmp_path, f"/usr/lib/sysctl.d/{name}", f"vm.swappiness = {len(name)}\n")
    row = info(tmp_path)["sysctls"]["vm.swappiness"]
    assert row["winner"] == f"/usr/lib/sysctl.d/{winner}"


def test_directory_order_masks(tmp_path: Path) -> None:
    places = ["/etc", "/run", "/usr/local/lib", "/usr/lib"]
    for number, place in enumerate(places):
        put(tmp_path, f"{place}/sysctl.d/50-x.conf", f"vm.swappiness = {number}\n")
    (tmp_path / "lib").symlink_to("usr/lib")
    for left in range(len(places)):
        result = info(tmp_path)
        assert result["order"] == [f"{places[left]}/sysctl.d/50-x.conf"]
        assert result["masked"] == sorted(f"{place}/sysctl.d/50-x.conf" for place in places[left + 1 :])
        assert result["sysctls"]["vm.swappiness"]["boot_value"] == str(left)
        (tmp_path / f"{places[left][1:]}/sysctl.d/50-x.conf").unlink()


@pytest.mark.parametrize("mask", ["/dev/null", "/nowhere", "empty", "directory"])
def test_masks_without_content(tmp_path: Path, mask: str) -> None:
    put(tmp_path, "/usr/lib/sysctl.d/50-x.conf", "vm.swappiness = 7\n")
    hide = tmp_path / "etc/sysctl.d/50-x.conf"
    hide.parent.mkdir(parents=True)
    if mask == "empty":
        hide.touch()
    elif mask == "directory":
        hide.mkdir()
    else:
        hide.symlink_to(mask)
    result = info(tmp_path)
    row = result["sysctls"]["vm.swappiness"]
    assert (row["boot_value"], row["masked"][0]["masked_by"]) == (None, "/etc/sysctl.d/50-x.conf")
    assert result["order"] == []
    assert result["masked"] == ["/usr/lib/sysctl.d/50-x.conf"]


def test_conf_file_without_link_only_matters_to_procps(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.conf", "vm.swappiness = 60\n")
    put(tmp_path, "/etc/sysctl.d/zz-firsttouch.conf", "vm.swappiness = 1\n")
    row = info(tmp_path, {"vm.swappiness": 1})["sysctls"]["vm.swappiness"]
    assert (row["boot_value"], row["procps_value"]) == ("1", "60")
    assert (row["verdict"], row["reason"], row["file"]) == ("warn", "procps_overrides", "/etc/sysctl.conf")


@pytest.mark.parametrize(
    ("pair", "asked", "other"),
    [
        ("vm.dirty_background_ratio", "3", ("vm.dirty_background_bytes", "268435456")),
        ("vm.dirty_background_bytes", "268435456", ("vm.dirty_background_ratio", "10")),
        ("vm.dirty_bytes", "1073741824", ("vm/dirty_ratio", "20")),
        ("vm.overcommit_ratio", "80", ("vm.overcommit_kbytes", "4096")),
        ("vm.overcommit_kbytes", "4096", ("vm.overcommit_ratio", "50")),
    ],
)
def test_every_pair(tmp_path: Path, pair: str, asked: str, other: tuple[str, str]) -> None:
    put(tmp_path, "/etc/sysctl.d/50-ours.conf", f"{pair} = {asked}\n")
    put(tmp_path, "/run/sysctl.d/60-other.conf", f"# theirs\n{other[0]} = {other[1]}\n")
    row = info(tmp_path, {pair: asked})["sysctls"][pair]
    assert (row["verdict"], row["reason"], row["boot_value"]) == ("fail", "counterpart_set", "0")
    assert row["counterpart"] == other[0].replace("/", ".")
    assert (row["counterpart_value"], row["file"]) == (other[1], "/run/sysctl.d/60-other.conf")
    put(tmp_path, "/run/sysctl.d/60-other.conf", "")
    put(tmp_path, "/run/sysctl.d/40-other.conf", f"{other[0]} = {other[1]}\n")
    assert info(tmp_path, {pair: asked})["sysctls"][pair]["verdict"] == "pass"


def test_pair_zeroed_although_ours_is_last(tmp_path: Path) -> None:
    """systemd keeps the place of a key that is set again to the same value, so the bytes are written last."""
    put(tmp_path, "/etc/sysctl.d/10-a.conf", "vm.dirty_ratio = 8\n")
    put(tmp_path, "/etc/sysctl.d/20-b.conf", "vm.dirty_bytes = 1048576\n")
    put(tmp_path, "/etc/sysctl.d/zz-firsttouch.conf", "vm.dirty_ratio = 8\n")
    row = info(tmp_path, {"vm.dirty_ratio": 8})["sysctls"]["vm.dirty_ratio"]
    assert (row["boot_value"], row["reason"], row["file"]) == (
        "0",
        "counterpart_set",
        "/etc/sysctl.d/20-b.conf",
    )
    assert row["procps_value"] == "8"


def test_counterpart_set_by_nobody_known(tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/vm/dirty_ratio", "0\n")
    put(tmp_path, "/proc/sys/vm/dirty_bytes", "8192\n")
    row = info(tmp_path, {"vm.dirty_ratio": 10})["sysctls"]["vm.dirty_ratio"]
    assert (row["reason"], row["counterpart_value"], row["file"]) == ("counterpart_set", "8192", None)


def test_tuned_changed_it_at_run_time(tmp_path: Path) -> None:
    put(tmp_path, "/etc/sysctl.d/50-a.conf", "vm.swappiness = 1\n")
    put(tmp_path, "/proc/sys/vm/swappiness", "10\n")
    put(tmp_path, "/etc/tuned/active_profile", "child\n")
    put(tmp_path, "/etc/tuned/child/tuned.conf", "[main]\ninclude=base\n[sysctl]\nvm.dirty_ratio=40\n")
    put(tmp_path, "/usr/lib/tuned/base/tuned.conf", "[vm]\nvm.swappiness=3\n[sysctl]\nvm.swappiness = 10\n")
    result = info(tmp_path, {"vm.swappiness": 1})
    row = result["sysctls"]["vm.swappiness"]
    assert (row["verdict"], row["reason"]) == ("fail", "foreign_owner")
    assert row["file"] == "/usr/lib/tuned/base/tuned.conf"
    assert [(item["writer"], item["key"], item["line"]) for item in result["foreign_writers"]] == [
        ("tuned", "vm.swappiness", 4)
    ]
    assert {item["key"] for item in info(tmp_path)["foreign_writers"]} == {"vm.swappiness", "vm.dirty_ratio"}


@pytest.mark.parametrize(
    ("key", "value"), [("vm.dirty_ratio", 8), ("vm.dirty_bytes", 1048576), ("vm.overcommit_kbytes", 4096)]
)
@pytest.mark.parametrize("check", [True, False])
def test_a_key_whose_counterpart_the_kernel_lacks(tmp_path: Path, key: str, value: int, check: bool) -> None:
    put(tmp_path, f"/proc/sys/{key.replace('.', '/')}", "20\n")
    args = {"sysroot": str(tmp_path), "values": {key: value}}
    result = run_module("sysctl_dropin", args, check=check)
    assert not result.get("failed"), result
    assert [row for row in result["changes"] if row["resource"].startswith("sysctl:")] == [
        {"resource": f"sysctl:{key}", "before": "20", "after": str(value)}
    ]
    assert (info(tmp_path, {key: value})["sysctls"][key]["verdict"] == "pass") is not check


@pytest.mark.parametrize(
    ("text", "asked"),
    [("1024", 1024), ("0x400", 1024), ("02000", 1024), ("1024 # of 2M", 1024), ("many", None)],
)
def test_pages_of_the_default_size_however_they_are_written(
    tmp_path: Path, text: str, asked: int | None
) -> None:
    put(tmp_path, "/proc/meminfo", "MemTotal: 67108864 kB\nHugepagesize: 1048576 kB\n")
    put(tmp_path, "/etc/sysctl.d/90-x.conf", f"vm/nr_hugepages = {text}\n")
    finding = info(tmp_path)["findings"][0]
    assert finding["reason"] == (
        "nr_hugepages_default_size_overcommit" if asked else "nr_hugepages_in_sysctl"
    )
    assert finding.get("bytes_requested") == (asked << 30 if asked else None)
