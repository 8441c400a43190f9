# SPDX-License-Identifier: GPL-3.0-or-later
"""kernel_cmdline and kernel_cmdline_info as a play sees them, on offline trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible.module_utils.basic import AnsibleModule
from boot_cases import (
    DEFAULT,
    DROPIN,
    KEYS,
    LINUX,
    WANT,
    change,
    dash_value,
    hashes,
    info,
    normal_line,
    put,
    tree,
    value,
)

GRUB = "/etc/default/grub"
REPLACED = "/var/lib/firsttouch/replaced.json"


def grub(root: Path, linux: str = "", default: str = "quiet", extra: str = "") -> Path:
    put(root, GRUB, f'{LINUX}="{linux}"\n{DEFAULT}="{default}"\n{extra}')
    return root


# -- tokens -------------------------------------------------------------------------------------------

BAD = ["", " ", "a b", "a\nb", "a;b", "a|b", "a&b", "a$b", "a`b`", "a'b", 'a"b', "a\\b", "a{b}", "a#b", "a\tb", "a(b)",
       "a<b", "a>b", "a*", "a!b", "é", "None", "null", "hugepages=None", "isolcpus=undefined", "--"]  # fmt: skip


@pytest.mark.parametrize("token", BAD)
@pytest.mark.parametrize("check", [True, False])
def test_tokens_that_could_break_quoting_are_refused(token: str, check: bool, tmp_path: Path) -> None:
    before = hashes(grub(tmp_path))
    result = change(tmp_path, check, tokens=["hugepagesz=2M", token], keys=[])
    assert result["failed"] and result["reason"] == "invalid_token" and repr(token) in result["msg"]
    assert hashes(tmp_path) == before


@pytest.mark.parametrize(
    "token",
    ["a", "a=", "a.b=c", "isolcpus=managed_irq,domain,1-3,5-N:1/2", "x=/dev/a", "a=1,2:3@4%5+6", "-a"],
)
def test_plain_tokens_are_written_as_they_are(token: str, tmp_path: Path) -> None:
    grub(tmp_path)
    result = change(tmp_path, tokens=[token], keys=[])
    if not result.get("failed"):
        assert normal_line(info(tmp_path)) == ["quiet", token]
        assert dash_value(tmp_path, DEFAULT) in (None, f"quiet {token}")
    else:
        assert result["reason"] in ("kernel_ignores_token", "different_effect")


def test_a_token_whose_key_is_not_ours_is_refused(tmp_path: Path) -> None:
    assert change(grub(tmp_path), tokens=["quiet"], keys=KEYS)["reason"] == "invalid_token"
    assert not change(tmp_path, tokens=["default-hugepagesz=2M"], keys=KEYS).get("failed")


def test_order_repeats_and_foreign_tokens_are_kept(tmp_path: Path) -> None:
    tokens = ["hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=2", "b=1", "a=1", "b=2"]
    grub(tmp_path, linux="z=1  y=2", default="x=1 x=1")
    result = change(tmp_path, tokens=tokens, keys=[])
    assert normal_line(info(tmp_path)) == ["z=1", "y=2", "x=1", "x=1", *tokens]
    assert value(info(tmp_path), LINUX) == "z=1  y=2"
    rows = [row["resource"] for row in result["changes"]]
    assert rows == sorted(rows) and len(set(rows)) == len(rows)
    assert "token:hugepages=2" in rows and "token:hugepages=2 (2)" in rows


def test_an_empty_list_is_no_way_to_remove(tmp_path: Path) -> None:
    assert change(grub(tmp_path), tokens=[])["reason"] == "invalid_token"


# -- conflicts ----------------------------------------------------------------------------------------

CONFLICTS = [
    ("hugepagesz=2M hugepages=5", WANT, "hugepages=5"),
    ("hugepages=5", WANT, "hugepages=5"),
    ("default_hugepagesz=1G", WANT, "default_hugepagesz=1G"),
    ("default-hugepagesz=1G", WANT, "default-hugepagesz=1G"),
    ("isolcpus=2-3", ["isolcpus=managed_irq,domain,1-3"], "isolcpus=2-3"),
    ("nohz_full=1", ["nohz_full=1-3"], "nohz_full=1"),
    ("mitigations=off", ["mitigations=auto"], "mitigations=off"),
    ("a-b=1", ["a_b=2"], "a-b=1"),
]


def cpus(root: Path) -> Path:
    for name in ("possible", "present", "online"):
        put(root, f"/sys/devices/system/cpu/{name}", "0-3\n")
    return root


FIVE = ["default_hugepagesz=2M", "hugepagesz=2M", "hugepages=64", "hugepagesz=1G", "hugepages=1"]
SIXTH = "hugepages=1 is one hugetlb argument too many: this kernel keeps 5, ignored"


def on_kernel(root: Path, release: str) -> Path:
    put(root, "/proc/sys/kernel/osrelease", release + "\n")
    put(root, "/proc/cpuinfo", "processor : 0\nflags : pse pdpe1gb lm\n")
    return root


def test_a_foreign_argument_that_pushes_ours_out_is_named(tmp_path: Path) -> None:
    """Linux 6.15 keeps five hugetlb arguments on x86; a repeated one changes nothing and takes a place."""
    result = change(on_kernel(grub(tmp_path, linux="hugepagesz=2M"), "6.18.1"), tokens=FIVE)
    assert result["reason"] == "foreign_token" and SIXTH in result["msg"]
    assert result["foreign"][0]["token"] == "hugepagesz=2M"
    assert not change(on_kernel(tmp_path, "6.14.1"), tokens=FIVE).get("failed")


def test_a_sixth_argument_of_our_own_is_refused(tmp_path: Path) -> None:
    before = hashes(on_kernel(grub(tmp_path), "6.18.1"))
    tokens = ["hugepagesz=2M", *FIVE]
    result = change(tmp_path, tokens=tokens)
    assert result["reason"] == "kernel_ignores_token" and SIXTH in result["msg"]
    assert hashes(tmp_path) == before


@pytest.mark.parametrize(("foreign", "tokens", "named"), CONFLICTS)
@pytest.mark.parametrize("place", ["linux", "default", "dropin"])
def test_a_contradiction_names_file_and_line(
    foreign: str, tokens: list[str], named: str, place: str, tmp_path: Path
) -> None:
    cpus(grub(tmp_path, **({place: f"q {foreign} r"} if place != "dropin" else {})))
    file, line = (GRUB, 1 if place == "linux" else 2)
    if place == "dropin":
        file, line = "/etc/default/grub.d/50-site.cfg", 2
        put(tmp_path, file, f'# site\n{LINUX}="${LINUX} {foreign}"\n')
    before = hashes(tmp_path)
    result = change(tmp_path, tokens=tokens, keys=[])
    assert (result["reason"], result["file"], result["line"]) == ("foreign_token", file, line), result
    assert result["foreign"][0]["token"] == named and "firsttouch_on_conflict" in result["msg"]
    assert hashes(tmp_path) == before


@pytest.mark.parametrize(("foreign", "tokens", "named"), CONFLICTS)
@pytest.mark.parametrize("quotes", ['"{}"', "'{}'", "{}"])
@pytest.mark.parametrize("position", ["{} r", "q {} r", "q {}"])
def test_replace_takes_out_that_token_and_nothing_else(
    foreign: str, tokens: list[str], named: str, quotes: str, position: str, tmp_path: Path
) -> None:
    text = position.format(foreign)
    written = quotes.format(text) if quotes != "{}" else text.replace(" ", "\\ ")
    put(tmp_path, GRUB, f"# {named}\n{DEFAULT}={written} # {named}\nGRUB_TIMEOUT=5\n")
    cpus(tmp_path)
    predicted = change(tmp_path, check=True, tokens=tokens, keys=[], on_conflict="replace")
    result = change(tmp_path, tokens=tokens, keys=[], on_conflict="replace")
    assert not result.get("failed"), result
    assert predicted["changes"] == result["changes"] and f"file:{GRUB}" in str(result["changes"])
    kept = [token for token in text.split() if token != named]
    assert normal_line(info(tmp_path)) == [*kept, *tokens]
    after = (tmp_path / GRUB.lstrip("/")).read_text()
    assert after.startswith(f"# {named}\n{DEFAULT}={written[0]}"[: -1 if quotes == "{}" else None])
    assert after.endswith(f" # {named}\nGRUB_TIMEOUT=5\n")
    assert dash_value(tmp_path, DEFAULT) in (None, " ".join([*kept, *tokens]))
    assert result["replaced"] == [{"token": named, "file": GRUB, "line": 2}]
    assert not change(tmp_path, tokens=tokens, keys=[], on_conflict="replace")["changed"]


@pytest.mark.parametrize(
    "text",
    [
        f'{DEFAULT}="${{{DEFAULT}:-quiet}} nosplash"\n',
        f": ${{{DEFAULT}:=quiet}}\n",
        f'if [ -z "${DEFAULT}" ]; then {LINUX}="${LINUX} panic=5"; fi\n',
    ],
)
def test_a_later_file_that_depends_on_there_being_arguments_is_named(text: str, tmp_path: Path) -> None:
    later = "/etc/default/grub.d/zzzz.cfg"
    before = hashes(put(grub(tmp_path, default=""), later, text) and tmp_path)
    for check in (True, False):
        result = change(tmp_path, check)
        assert (result.get("reason"), result.get("file")) == ("foreign_tokens_changed", later), result
    assert hashes(tmp_path) == before
    grub(tmp_path, default="splash")
    assert change(tmp_path)["changed"]


def absent(root: Path, check: bool = False) -> dict[str, Any]:
    return change(root, check, state="absent", tokens=[], keys=[*KEYS, "nohz_full"])


def test_what_was_replaced_comes_back_with_the_removal(tmp_path: Path) -> None:
    put(grub(tmp_path, default="quiet hugepages=5 r", extra="# é \n"), "/etc/default/grub.d/a.cfg", "# mine\n")
    with (tmp_path / GRUB.lstrip("/")).open("ab") as file:
        file.write(b"# \xff\r\n")
    before = hashes(tmp_path)
    for tokens in (WANT, [*WANT[:2], "hugepages=7"]):  # the second time nothing is left to replace
        assert change(tmp_path, tokens=tokens, keys=KEYS, on_conflict="replace")["changed"]
    assert (tmp_path / REPLACED.lstrip("/")).stat().st_mode & 0o777 == 0o600
    predicted, result = absent(tmp_path, check=True), absent(tmp_path)
    assert predicted["changes"] == result["changes"] and result["not_restored"] == []
    assert hashes(tmp_path) == before and not absent(tmp_path)["changed"]


def test_of_two_replacements_the_first_text_comes_back(tmp_path: Path) -> None:
    before = hashes(grub(tmp_path, linux="nohz_full=1", default="hugepages=5"))
    cpus(tmp_path)
    for tokens in (WANT, [*WANT, "nohz_full=2-3"]):
        assert len(change(tmp_path, tokens=tokens, keys=[], on_conflict="replace")["replaced"]) == 1
    absent(tmp_path)
    assert {path: digest for path, digest in hashes(tmp_path).items() if path in before} == before


def test_a_file_that_somebody_has_changed_since_stays_and_is_told(tmp_path: Path) -> None:
    grub(tmp_path, default="quiet hugepages=5")
    change(tmp_path, on_conflict="replace")
    with (tmp_path / GRUB.lstrip("/")).open("a") as file:
        file.write("GRUB_TIMEOUT=1\n")
    text = (tmp_path / GRUB.lstrip("/")).read_text()
    with mock.patch.object(AnsibleModule, "warn") as warn:
        result = absent(tmp_path)
    assert result["not_restored"] == [{"token": "hugepages=5", "file": GRUB}]
    # not from the result: ansible-core says the same words once per process
    assert f"hugepages=5 was taken out of {GRUB}" in str(warn.call_args_list)
    assert (tmp_path / GRUB.lstrip("/")).read_text() == text
    assert not (tmp_path / REPLACED.lstrip("/")).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"/etc/default/grub": 1}', '{"/etc/default/grub": {"before": "x"}}'])
def test_a_damaged_record_of_what_was_replaced_is_refused(text: str, tmp_path: Path) -> None:
    grub(tmp_path)
    change(tmp_path)
    put(tmp_path, REPLACED, text)
    before = hashes(tmp_path)
    result = absent(tmp_path)
    assert (result.get("reason"), result.get("file")) == ("bad_record", REPLACED) and hashes(tmp_path) == before


def test_a_limit_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    before = hashes(cpus(grub(tmp_path, linux="nr_cpus=2")))
    for on_conflict in ("fail", "replace"):
        result = change(tmp_path, tokens=["isolcpus=2-3"], keys=[], on_conflict=on_conflict)
        assert (result["reason"], result["foreign"][0]["token"]) == ("foreign_token", "nr_cpus=2")
        assert hashes(tmp_path) == before


@pytest.mark.parametrize("default", ["gone", "1>9", "Windows", "Advanced options for Debian GNU/Linux>gone"])
def test_an_offline_tree_whose_default_entry_is_unclear_is_refused(default: str, tmp_path: Path) -> None:
    root = tree("debian-13", tmp_path)
    cfg = root / "boot/grub/grub.cfg"
    text = cfg.read_text().replace('set default="0"', f'set default="{default}"')
    cfg.write_text(text + "menuentry 'Windows' { chainloader +1 }\n")
    before = hashes(root)
    result = change(root)
    assert result["reason"].startswith("default_entry_") and result["file"] == "/boot/grub/grub.cfg"
    assert hashes(root) == before


def test_replace_does_not_touch_what_is_not_written_literally(tmp_path: Path) -> None:
    grub(tmp_path, extra=f'N=5\n{LINUX}="hugepages=$N"\nGRUB_CMDLINE_LINUX_RECOVERY="$N"\n')
    before = hashes(tmp_path)
    result = change(tmp_path, on_conflict="replace")
    assert result["failed"] and result["reason"] in ("cannot_edit", "cannot_replace")
    assert hashes(tmp_path) == before


def test_replace_leaves_files_that_cannot_be_parsed(tmp_path: Path) -> None:
    put(tmp_path, GRUB, f'{LINUX}="hugepages=5\n')
    before = hashes(tmp_path)
    assert change(tmp_path, on_conflict="replace")["reason"] == "unterminated_quote"
    assert hashes(tmp_path) == before


HARMLESS = [
    ("hugepagesz=1G hugepages=4", WANT),
    ("nohz_full=1", ["isolcpus=managed_irq,domain,1-3"]),
    ("isolcpus=managed_irq,domain,1-3", ["hugepages=4"]),
    ("mem_sleep_default=deep", ["mem_sleep=1"]),
]


@pytest.mark.parametrize(("foreign", "tokens"), HARMLESS)
def test_foreign_tokens_that_change_nothing_for_ours_stay(
    foreign: str, tokens: list[str], tmp_path: Path
) -> None:
    cpus(grub(tmp_path, linux=foreign))
    assert not change(tmp_path, tokens=tokens, keys=[]).get("failed")
    assert normal_line(info(tmp_path)) == [*foreign.split(), "quiet", *tokens]


@pytest.mark.parametrize(
    "value_", [" ".join(WANT), "a " + " ".join(WANT), "hugepagesz=1G hugepages=1 " + " ".join(WANT)]
)
def test_what_somebody_else_already_does_is_left_to_them(value_: str, tmp_path: Path) -> None:
    before = hashes(grub(tmp_path, linux=value_))
    assert not change(tmp_path)["changed"] and hashes(tmp_path) == before


@pytest.mark.parametrize(
    "value_",
    [
        "hugepagesz=2M hugepages=1024",  # the default size is missing
        "hugepages=1024 default_hugepagesz=2M hugepagesz=2M",  # counts before its size
        "-- " + " ".join(WANT),
    ],
)
def test_almost_the_same_is_not_the_same(value_: str, tmp_path: Path) -> None:
    before = hashes(grub(tmp_path, default=value_))
    result = change(tmp_path)
    document = info(tmp_path, want=WANT)
    if result.get("failed"):
        assert hashes(tmp_path) == before and document["wanted"]["verdict"] == "fail"
    else:
        assert result["changed"] and document["wanted"]["verdict"] == "pass"


# -- state --------------------------------------------------------------------------------------------


def test_ours_follow_the_request_and_go(tmp_path: Path) -> None:
    before = hashes(grub(tmp_path))
    change(tmp_path)
    other = ["hugepagesz=1G", "hugepages=0:1,1:2"]
    result = change(tmp_path, tokens=other)
    assert not result.get("failed") and normal_line(info(tmp_path)) == ["quiet", *other]
    gone = change(tmp_path, tokens=[], state="absent")
    assert gone["changed"] and hashes(tmp_path) == before
    assert not change(tmp_path, tokens=[], state="absent")["changed"]


def test_ours_go_when_somebody_else_does_the_same(tmp_path: Path) -> None:
    """The kernel takes a size that is given twice for a mistake and drops the second."""
    grub(tmp_path)
    change(tmp_path)
    grub(tmp_path, linux=" ".join(WANT))
    assert change(tmp_path)["changed"] and not (tmp_path / DROPIN.lstrip("/")).exists()
    assert not change(tmp_path)["changed"]
    assert info(tmp_path, want=WANT)["wanted"]["verdict"] == "pass"
    grub(tmp_path)
    assert change(tmp_path)["changed"]


def test_owned_comes_from_the_plan_on_the_host(tmp_path: Path) -> None:
    root = tree("debian-13-systemd-boot", tmp_path)
    change(root)
    new = ["hugepagesz=2M", "hugepages=7"]
    assert change(root, tokens=new)["reason"] == "foreign_token"
    parts: dict[str, Any] = {name: {} for name in ("intent", "topology", "sections", "owned", "sysctls")}
    plan = {"schema": 1, **parts, "boot": {"tokens": new, "keys": KEYS, "owned": [*WANT, *new]}}
    put(root, "/etc/firsttouch/plan.json", json.dumps(plan))
    assert not change(root, tokens=new).get("failed")
    assert normal_line(info(root))[-2:] == new
    put(root, "/etc/firsttouch/plan.json", "{")
    assert change(root, tokens=new)["reason"] == "record_unreadable"


def test_a_dropin_somebody_edited_is_ours_to_mend(tmp_path: Path) -> None:
    grub(tmp_path)
    change(tmp_path)
    put(tmp_path, DROPIN, f'{DEFAULT}="${DEFAULT} hugepages=9"\n')
    result = change(tmp_path)
    assert result["changed"] and normal_line(info(tmp_path)) == ["quiet", *WANT]
    put(tmp_path, DROPIN, f'{DEFAULT}="unclosed\n')
    assert change(tmp_path)["changed"] is True
    assert normal_line(info(tmp_path)) == ["quiet", *WANT]


@pytest.mark.parametrize("token", ["audit=1", 'x=\\"a b\\"', "hugepages=\\'4\\'"])
@pytest.mark.parametrize("remove", [False, True])
def test_whatever_somebody_wrote_into_the_dropin_goes(token: str, remove: bool, tmp_path: Path) -> None:
    grub(tmp_path)
    change(tmp_path)
    if not remove:
        wanted = hashes(tmp_path)
    put(tmp_path, DROPIN, (tmp_path / DROPIN.lstrip("/")).read_text().rstrip('"\n') + f' {token}"\n')
    asked: dict[str, Any] = {"state": "absent", "tokens": []} if remove else {}
    predicted, result = change(tmp_path, check=True, **asked), change(tmp_path, **asked)
    assert result["changed"] and predicted["changes"] == result["changes"]
    assert (tmp_path / DROPIN.lstrip("/")).exists() is not remove
    assert remove or hashes(tmp_path) == wanted


@pytest.mark.parametrize("token", ['hugepages="5"', "hugepages=$N"])
def test_a_foreign_argument_of_odd_characters_is_replaced(token: str, tmp_path: Path) -> None:
    put(tmp_path, GRUB, f"{DEFAULT}='quiet {token}'\n")
    results = [change(tmp_path, check, on_conflict="replace") for check in (True, False)]
    assert results[0].get("changes") == results[1].get("changes") and results[0].get("msg") == results[1].get("msg")
    assert bool(results[1].get("failed")) is not (tmp_path / DROPIN.lstrip("/")).exists()


@pytest.mark.parametrize("check", [True, False])
def test_reboot_due_is_about_the_effect_of_ours(check: bool, tmp_path: Path) -> None:
    root = tree("debian-13", tmp_path)
    running = (root / "proc/cmdline").read_text().strip()
    assert change(root, check)["reboot_due"] is True
    for line, due in [
        (f"{running} {' '.join(WANT)}", False),
        (f"{running} other=1 {' '.join(WANT)}", False),
        (f"{running} {' '.join(WANT)} hugepages=9", False),  # the kernel drops the second count
        (f"{running} hugepages=9 {' '.join(WANT)}", True),
        (f"{running} -- {' '.join(WANT)}", True),
    ]:
        put(root, "/proc/cmdline", line + "\n")
        assert change(root, check)["reboot_due"] is due, line


def test_foreign_staged(tmp_path: Path) -> None:
    root = tree("debian-13", tmp_path)
    running = (root / "proc/cmdline").read_text().strip()
    put(root, "/proc/cmdline", running.replace("quiet", "audit=1") + "\n")
    assert change(root)["foreign_staged"] == [
        f"only in the next boot: quiet ({GRUB}:9)",
        "only in the running kernel: audit=1",
    ]


def test_foreign_tokens_with_our_names_are_listed_too(tmp_path: Path) -> None:
    root = tree("debian-13", tmp_path)
    put(root, "/etc/default/grub.d/50-site.cfg", f'{LINUX}="${LINUX} hugepagesz=1G"\n')
    change(root)
    assert change(root)["foreign_staged"] == [
        "only in the next boot: hugepagesz=1G (/etc/default/grub.d/50-site.cfg:1)"
    ]
    # what runs may be of ours from before
    put(root, "/proc/cmdline", (root / "proc/cmdline").read_text().strip() + " hugepagesz=1G hugepages=99\n")
    assert change(root)["foreign_staged"] == []


# -- memory guard -------------------------------------------------------------------------------------


def memory(root: Path, mib: int, nodes: tuple[int, ...] = ()) -> Path:
    put(root, "/proc/meminfo", f"MemTotal: {mib * 1024} kB\n")
    put(root, "/sys/devices/system/node/online", f"0-{max(len(nodes) - 1, 0)}\n")
    for number, size in enumerate(nodes or (mib,)):
        base = f"/sys/devices/system/node/node{number}"
        put(root, f"{base}/meminfo", f"Node {number} MemTotal: {size * 1024} kB\n")
        put(root, f"{base}/cpulist", f"{number}\n")
    for name in ("has_memory", "has_normal_memory"):
        put(root, f"/sys/devices/system/node/{name}", f"0-{max(len(nodes) - 1, 0)}\n")
    return root


@pytest.mark.parametrize(
    ("tokens", "linux", "nodes", "fits"),
    [
        (["hugepagesz=2M", "hugepages=1000"], "", (4096,), True),
        (["hugepagesz=2M", "hugepages=2000"], "", (4096,), False),
        (["hugepagesz=2M", "hugepages=1000"], "hugepagesz=1G hugepages=2", (4096,), False),
        (["hugepagesz=2M", "hugepages=1000"], "mem=2G", (4096,), False),
        (["hugepagesz=2M", "hugepages=1500"], "crashkernel=1G", (4096,), False),
        (["hugepagesz=2M", "hugepages=0:300,1:1000"], "", (1024, 3072), True),
        (["hugepagesz=2M", "hugepages=0:450,1:100"], "", (1024, 3072), False),
        (["isolcpus=1"], "", (4096,), True),
        (["isolcpus=1"], "hugepagesz=2M hugepages=4000", (4096,), False),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_the_complete_line_must_leave_memory(
    tokens: list[str], linux: str, nodes: tuple[int, ...], fits: bool, check: bool, tmp_path: Path
) -> None:
    memory(cpus(grub(tmp_path, linux=linux)), sum(nodes), nodes)
    before = hashes(tmp_path)
    result = change(tmp_path, check, tokens=tokens, keys=[], reserve_floor_bytes=256 << 20)
    assert result.get("failed", False) is not fits, result
    if not fits:
        assert result["reason"] == "memory_guard" and "MiB" in result["msg"]
        assert "firsttouch_" in result["msg"] and hashes(tmp_path) == before


def test_the_floor_decides(tmp_path: Path) -> None:
    memory(grub(tmp_path), 2048)
    given: dict[str, Any] = {"check": True, "tokens": ["hugepagesz=2M", "hugepages=512"], "keys": []}
    assert change(tmp_path, reserve_floor_bytes=1024 << 20, **given)["memory"]["evaluated"]
    assert change(tmp_path, reserve_floor_bytes=(1024 << 20) + 1, **given)["reason"] == "memory_guard"
    assert not change(tmp_path, **given).get("failed")
    assert change(tmp_path, **{**given, "tokens": ["hugepages=900"]})["reason"] == "memory_guard"


# -- what is not ours to handle -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "paths",
    [
        {},
        {"/proc/cmdline": "ro\n"},
        {"/etc/zipl.conf": "[defaultboot]\n", GRUB: ""},
        {"/etc/kernel/proxmox-boot-uuids": "x\n", GRUB: ""},
        {"/ostree/repo/config": "", GRUB: ""},
        {"/boot/extlinux/extlinux.conf": ""},
        {"/etc/kernel/install.conf": "layout=uki\n", GRUB: ""},
        {"/etc/os-release": 'ID="fedora"\n', GRUB: "GRUB_ENABLE_BLSCFG=false\n"},
        {"/usr/sbin/grub-mkconfig": "#!/bin/sh\n. /etc/default/grub\n", GRUB: ""},
        {"/usr/sbin/grub2-mkconfig": "#!/bin/sh\n. /etc/default/grub\n", GRUB: ""},
        {"/etc/os-release": 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', GRUB: ""},
        {"/etc/os-release": "ID=arch\n", GRUB: "", "/boot/grub/grub.cfg": "menuentry a { linux /v ro; }\n"},
        {GRUB: "", "/boot/grub2/grub.cfg": "menuentry a { linux /v ro; }\n"},
        {
            "/boot/grub/grub.cfg": "menuentry a { linux /v ro; }\n",
            "/boot/loader/loader.conf": "default x\n",
            "/boot/loader/entries/x.conf": "linux /v\n",
        },
    ],
)
def test_other_boot_loaders_are_refused(paths: dict[str, str], tmp_path: Path) -> None:
    for path, text in paths.items():
        put(tmp_path, path, text)
    before = hashes(tmp_path)
    result = change(tmp_path)
    assert result["failed"] and result["reason"] == "unsupported_bootloader"
    assert hashes(tmp_path) == before
    document = info(tmp_path, want=WANT)
    assert document["bootloader"] is None and document["wanted"]["verdict"] == "fail"
    assert [row["reason"] for row in document["problems"]] == ["unsupported_bootloader"]


@pytest.mark.parametrize(
    "paths",
    [
        {GRUB: ""},
        {"/etc/os-release": 'ID=linuxmint\nID_LIKE="ubuntu debian"\n', GRUB: ""},
        {"/etc/os-release": "ID=other\n", "/usr/bin/grub-mkconfig": ". /etc/default/grub.d/x\n", GRUB: ""},
    ],
)
def test_grub_that_reads_dropins_is_known_by_its_script_or_its_distribution(
    paths: dict[str, str], tmp_path: Path
) -> None:
    for path, text in paths.items():
        put(tmp_path, path, text)
    assert info(tmp_path)["bootloader"] == "grub"


def test_a_live_line_alone_is_no_proof_of_the_next_boot(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cmdline", " ".join(WANT) + "\n")
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert wanted["live"] and not wanted["staged"] and wanted["reason"] == "unsupported_bootloader"


# -- reading ------------------------------------------------------------------------------------------


def test_an_unreadable_grub_cfg_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.firsttouch.host.plugins.module_utils import _boot_grub
    from ansible_collections.firsttouch.host.plugins.module_utils._files import read_text

    root = tree("debian-13", tmp_path)

    def denied(sysroot: str, path: str) -> str | None:
        if path.endswith("grub.cfg"):
            raise PermissionError(13, "Permission denied", path)
        return read_text(sysroot, path)

    monkeypatch.setattr(_boot_grub, "read_text", denied)
    document = info(root, want=WANT)
    assert [(row["reason"], row["file"]) for row in document["problems"]] == [
        ("permission_denied", "/boot/grub/grub.cfg")
    ]
    assert document["next_boot"] is None and document["running"] and value(document, DEFAULT) == "quiet"
    assert document["wanted"]["reason"] == "permission_denied"


def test_the_document(tmp_path: Path) -> None:
    root = tree("debian-12", tmp_path)
    put(root, "/proc/sys/kernel/random/boot_id", "abc\n")
    document = info(root)
    assert (document["bootloader"], document["boot_id"], document["changed"]) == ("grub", "abc", False)
    assert document["next_boot"]["line"].endswith("ro console=ttyS0,115200 quiet")
    assert document["next_boot"]["tokens"][1:3] == [["ro", None], ["console", "ttyS0,115200"]]
    assert document["default_entry"] == document["next_boot"]["id"] == document["entries"][0]["id"]
    assert document["running"]["line"].startswith("BOOT_IMAGE=")
    assert [len(document["entries"]), document["problems"]] == [3, []]
    assert document["predicted"]["next_boot"]["kernel"]["version"] == "6.1"
    assert info(root, kernel="5.10.0-30-amd64")["predicted"]["next_boot"]["kernel"]["version"] == "5.10"
    assert info(root, kernel="nonsense")["reason"] == "invalid_kernel"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (" ".join(WANT), None),
        ("a " + " ".join(WANT) + " b", None),
        ("a " + " ".join(WANT[:2]), "missing_tokens"),
        ("hugepages=1024 default_hugepagesz=2M hugepagesz=2M", "wrong_order"),
        ("-- " + " ".join(WANT), "after_double_dash"),
        ("hugepages=3 " + " ".join(WANT), "different_effect"),
        ("hugepagesz=2M hugepages=512 " + " ".join(WANT), "different_effect"),
    ],
)
def test_the_verdict_on_what_runs(line: str, reason: str | None, tmp_path: Path) -> None:
    grub(tmp_path, linux=" ".join(WANT))
    put(tmp_path, "/proc/cmdline", f"BOOT_IMAGE=/v {line}\n")
    wanted = info(tmp_path, want=WANT)["wanted"]
    assert wanted["live"] is (reason is None) and wanted["reboot_required"] is (reason is not None)
    assert wanted["verdict"] == ("pass" if reason is None else "fail")
    pending = ("missing_tokens", "wrong_order", "different_effect")
    assert wanted["reason"] == ("pending_reboot" if reason in pending else reason)


def test_arguments_of_init_are_told_apart(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cmdline", 'a="b c" ro -- --port 1 hugepages=5\n')
    running = info(tmp_path)["running"]
    assert running["tokens"] == [["a", "b c"], ["ro", None]] and running["kernel_tokens"] == ['a="b c"', "ro"]
    assert running["init_arguments"] == ["--port", "1", "hugepages=5"]


def test_settings_and_entry_that_disagree(tmp_path: Path) -> None:
    root = tree("debian-13", tmp_path)
    change(root)
    wanted = info(root, want=WANT)["wanted"]
    assert (wanted["reason"], wanted["staged"], wanted["edit"]) == ("not_generated", False, True)
    assert wanted["file"] == "/boot/grub/grub.cfg" and wanted["line"] == 94
    cfg = root / "boot/grub/grub.cfg"
    cfg.write_text(cfg.read_text().replace(" quiet\n", f" quiet {' '.join(WANT)}\n"))
    put(root, "/proc/cmdline", info(root)["next_boot"]["line"] + "\n")
    assert info(root, want=WANT)["wanted"]["verdict"] == "pass"
    (root / DROPIN.lstrip("/")).unlink()
    wanted = info(root, want=WANT)["wanted"]
    # the next update-grub would take it away
    assert (wanted["verdict"], wanted["reason"], wanted["live"]) == ("fail", "missing_tokens", True)


def test_sysroot_links_resolve_inside_of_it(tmp_path: Path) -> None:
    put(tmp_path, "/data/grub", f'{LINUX}="inside"\n')
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/grub").symlink_to("/data/grub")
    assert value(info(tmp_path), LINUX) == "inside"
    (tmp_path / "etc/default/grub.d").symlink_to("/data/grub.d")
    change(tmp_path)
    assert (tmp_path / "data/grub.d/zzz-firsttouch.cfg").exists()
