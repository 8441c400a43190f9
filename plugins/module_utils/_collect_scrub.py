# SPDX-License-Identifier: Apache-2.0
"""Take out of a recording what identifies a host or opens it, and keep what our readers compare.

One value becomes one stand-in everywhere, so that the UUID of a boot entry still is that of the file system.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from . import _collect_paths as paths

_HEX = "0-9a-fA-F"
_UUID = re.compile(rf"\b[{_HEX}]{{8}}-(?:[{_HEX}]{{4}}-){{3}}[{_HEX}]{{12}}\b")
_MACHINE_ID = re.compile(rf"(?<![{_HEX}])[{_HEX}]{{32}}(?![{_HEX}])")
_SHORT_UUID = re.compile(rf"(?<=UUID=)[{_HEX}]{{4,8}}-[{_HEX}]{{2,4}}(?![\w-])")
_MAC = re.compile(rf"\b(?:[{_HEX}]{{2}}:){{5,7}}[{_HEX}]{{2}}\b")
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-])")
_IPV6 = re.compile(
    rf"(?<![\w:.])(?=[{_HEX}:]*::|(?:[{_HEX}]{{1,4}}:){{7}})[{_HEX}]{{0,4}}(?::[{_HEX}]{{0,4}}){{2,7}}(?![\w:])"
)
# What a key with a secret for its value has in its name. `private` alone is none: PrivateTmp= of systemd. Nor is a
# setting of a tokenizer, as long as no key follows, or secretmem= of the kernel.
_WORD = (
    r"(?:passw|passphrase|(?!(?<![\w.-])secretmem(?:\.enable)?(?![\w.-]))secret"
    r"|token(?!i[sz](?:e|ation)(?![\w.-]*(?:key|auth|token)))"
    r"|credential|(?:api|access|auth)[_-]?key|private_?key|fastopen_key|luks\.key)"
)
# What tells nothing although its key has such a name: CONFIG_SECRETMEM=y, --authentication-token-webhook=true.
_NO_SWITCH = r"(?!(?:y|n|m|yes|no|true|false|on|off)(?![^\s\"',;\\]))"
_VALUE = rf"{_NO_SWITCH}(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)"
# A key begins where its word does, and is looked through once: the time is that of its length, not of its square.
_KEY = rf"(?<![\w.-])(?=[\w.-]*?{_WORD})[\w.-]+"
_SECRETS = (
    # An assignment that is quoted as a whole, as in Environment= of systemd. No kernel argument: those have dots.
    rf"(?i)(\"(?=\w*?{_WORD})\w+=)(?=[^\"\n]*[ \t])(?:\\.|[^\"\\\n])+(?=\")",
    rf"(?i)('(?=\w*?{_WORD})\w+=)(?=[^'\n]*[ \t])[^'\n]+(?=')",
    # As INI and YAML files have it, with space around the sign: the rest of the line.
    rf"(?im)^([ \t]*(?:-[ \t]+)?{_KEY}(?:[ \t]+=[ \t]*|:[ \t]+)){_NO_SWITCH}\S.*$",
    rf"(?i)({_KEY}(?:[ \t]*=[ \t]*|:[ \t]+)){_VALUE}",
    # An option of a command, and its value as the next word.
    rf"(?i)(?<![\w-])(--?(?=[\w-]*?{_WORD})[\w-]+(?:\.key[\w-]*)?[ \t]+)(?![-\\]){_VALUE}",
    r"(?i)(\bauthorization[ \t]*[:=][ \t]*\S+[ \t]+|\bbearer[ \t]+)[\w.~+/=-]{8,}",
)
_SECRET = tuple(re.compile(pattern) for pattern in _SECRETS)
# Who logs in, in an address; and tokens that tell what they are by their form: JWT, AWS, GitHub, GitLab, Hugging Face.
_URL_USER = re.compile(r"(?:(?<=://)|(?<=\biscsi:))[^\s/@\"']+(?=@)")
_TOKEN = re.compile(
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\b(?:gh[pousr]|github_pat|glpat|hf)[_-][A-Za-z0-9_]{16,}"
)
# People, and not instances of units: getty@tty1.service.
_MAIL = re.compile(
    r"(?<![\w.+@:/-])[A-Za-z0-9][\w.+-]*@(?![\w.-]+\.(?:service|mount|socket|slice|timer|target|path)\b)"
    r"(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b"
)
# Of a host: its name, that of /etc/hostname and its domain; each may be one of some words.
_NAMES, _TRIES = 3, 8
_PIECE = re.compile(r"[\w-]+|[^\w-]")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# In JSON only a text is a secret: a list of kernel arguments is called tokens in plan.json. Nor is in our own files
# what is kept there by the name of its file or unit, which may be that of a model.
_OURS = ("/etc/firsttouch/", "/var/lib/firsttouch/")
_JSON_SECRET, _JSON_SECRET_OF_OURS = (
    re.compile(rf'(?i)("(?=[^"\n]*?{_WORD}){but}[^"\n]*"\s*:\s*){_STRING.pattern}')
    for but in ("", r'(?![^"\n]*\.(?:service|slice|mount|json|env)")')
)
_PEM = re.compile(r"(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)")
# GRUB's `password USER TEXT`, in grub.cfg and in what makes it.
_PASSWORD = re.compile(r"(?m)^(\s*password[ \t]+\S+[ \t]+)\S.*$")
_PBKDF2 = re.compile(r"grub\.pbkdf2\.\S+")
_SERIAL = re.compile(r"(?im)^(serial\w*\s*:\s*)\S.*$")
_BUILDER = re.compile(r"\([^()\s]+@[^()\s]+\)")
_REMOTE = re.compile(r"^(?:nfs\d?|cifs|smb3|ceph|lustre|9p|glusterfs|fuse\..*|afs|virtiofs)$")
_OVERLAY = re.compile(r"((?:lower|upper|work)dir\+?)=[^,\s]+")
# Words of the files themselves: a host that is called boot or service must not take them away.
_PLAIN_NAMES = frozenset(
    word.lower()
    for text in (
        *paths.CONTENT,
        *paths.PRESENCE,
        *paths.LINKS,
        "localhost debian ubuntu fedora linux rocky centos alma rhel redhat oracle amazon suse host name unit service",
        "install mount slice socket target timer path exec execstart type where what options after before requires",
        "wants multi user swap root quiet splash single rescue recovery domain managed_irq nohz isolcpus hugepages",
        "hugepagesz irqaffinity console set menuentry submenu initrd title version saved next_entry saved_entry",
        "node nodes cpu cpus cpulist memory size count pagesize group mode gid uid hugetlbfs tmpfs rw auto default",
        "present absent state sections topology intent plan servers server models model samplers sampler weights",
        "static policy entries processor flags numa trust true false none null yes off always never madvise",
    )
    for word in re.split(r"[^A-Za-z_]+", text)
    if word
)
_SYSTEM_MOUNTS = frozenset(
    ("/", "/boot", "/boot/efi", "/efi", "/dev", "/dev/shm", "/dev/hugepages", "/proc", "/sys", "/run")
)
_NUMBERS = frozenset(("/proc/zoneinfo", "/proc/meminfo", "/proc/iomem", "/proc/buddyinfo"))
# Files that people and installers write; in others a number with dots is a version.
_ADDRESSED = (
    *("/etc/", "/boot/", "/efi/", "/usr/lib/", "/usr/local/lib/", "/run/", "/var/lib/"),
    *("/proc/cmdline", "/proc/self/"),
)


class Scrubber:
    """Replaces names, addresses and identifiers.

    NAMES are the host's own; one that is part of KEEP, a text that must stay whole, or a common word stays.
    Without DISTINCT all addresses have one stand-in, and so have all UUIDs and the like.
    """

    def __init__(self, names: Iterable[str], keep: str = "", *, distinct: bool = True) -> None:
        self._distinct = distinct
        wanted = {part for name in names for part in (name, name.partition(".")[0]) if len(part) > 2}
        own = sorted(
            (name for name in wanted if not _plain(name) and name not in keep), key=len
        )
        pattern = "|".join(re.escape(name) for name in reversed(own))
        self._names = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE) if pattern else None
        self._seen: dict[str, str] = {}

    def path(self, path: str) -> str:
        """PATH without machine ids and host names."""
        return self._ids(path)

    def data(self, path: str, data: bytes) -> bytes:
        """DATA as recorded for PATH."""
        if path.startswith("/sys/firmware/efi/efivars/"):
            # Four bytes of attributes, then UTF-16; names of boot entries have the machine's id in them.
            text = self._ids(data[4:].decode("utf-16-le", "replace"))
            return data[:4] + text.encode("utf-16-le")
        text = self.text(path, data.decode("utf-8", "surrogateescape"))
        return text.encode("utf-8", "surrogateescape")

    def text(self, path: str, text: str) -> str:
        """TEXT as recorded for PATH."""
        if path.startswith("/sys/") or path in _NUMBERS:
            return text
        if path in ("/etc/passwd", "/etc/group"):
            return _accounts(text, 4 if path == "/etc/passwd" else 3)
        if path.endswith(("/mountinfo", "/mounts", "/fstab")):
            text = _mounts(text, fstab=path.endswith("/fstab"))
        if path == "/proc/version":
            text = _BUILDER.sub("(builder@host)", text)
        text = _SERIAL.sub(r"\g<1>0", _PBKDF2.sub("grub.pbkdf2.removed", text))
        secret = _JSON_SECRET_OF_OURS if path.startswith(_OURS) else _JSON_SECRET
        text = secret.sub(r'\g<1>"removed"', text)
        if path.endswith(".json"):
            return _STRING.sub(lambda match: self._string(path, match.group(0)), text)
        return self._lines(path, text)

    def _string(self, path: str, literal: str) -> str:
        """A string of JSON: scrubbed as the text that it is, whose lines end where its own say so."""
        try:
            text = json.loads(literal)
        except ValueError:
            return self._lines(path, literal)
        scrubbed = self._lines(path, text)
        return literal if scrubbed == text else json.dumps(scrubbed)

    def _lines(self, path: str, text: str) -> str:
        text = _PASSWORD.sub(r"\g<1>removed", _PEM.sub("removed", text))
        for pattern in _SECRET:
            text = pattern.sub(r"\g<1>removed", text)
        text = _TOKEN.sub("removed", _URL_USER.sub("removed", text))
        text = self._ids(text)
        if path.startswith(_ADDRESSED):
            text = _MAIL.sub("somebody@example.org", text)
            text = self._numbered(_MAC, text, lambda n: f"02:00:00:00:00:{n % 256:02x}")
            text = self._numbered(_IPV4, text, lambda n: f"192.0.2.{n % 256}", _is_special)
            text = self._numbered(_IPV6, text, lambda n: f"2001:db8::{n:x}", lambda old: old in ("::1", "::"))
        return text

    def _ids(self, text: str) -> str:
        text = self._numbered(_UUID, text, lambda n: f"00000000-0000-4000-8000-{n:012x}")
        text = self._numbered(_MACHINE_ID, text, lambda n: f"{n:032x}")
        text = self._numbered(_SHORT_UUID, text, lambda n: f"0000-{n:04x}")
        return self._names.sub("host", text) if self._names else text

    def _numbered(
        self,
        pattern: re.Pattern[str],
        text: str,
        name: Callable[[int], str],
        keep: Callable[[str], bool] = lambda old: False,
    ) -> str:
        def stand_in(match: re.Match[str]) -> str:
            old = match.group(0)
            if not self._distinct:
                return old if keep(old) else name(0)
            if keep(old) or old in self._seen.values():
                return old
            return self._seen.setdefault(old, name(len(self._seen) + 1))

        return pattern.sub(stand_in, text)


def same(path: str, recorded: str, text: str) -> bool:
    """Whether RECORDED, which a recording has for PATH, may be TEXT: they are the same once both are scrubbed.

    Whatever the number of a stand-in, and whatever the host is called: a recording does not say that.
    """
    return _same(path, Scrubber((), distinct=False).text(path, recorded), text, ())


def _same(path: str, scrubbed: str, text: str, names: tuple[str, ...]) -> bool:
    """Whether TEXT becomes SCRUBBED where the host is called NAMES, and by some more name where it must be."""
    found = Scrubber(names, distinct=False).text(path, text)
    if found == scrubbed:
        return True
    pairs = zip(_PIECE.findall(scrubbed), _PIECE.findall(found))
    label = next((other if one == "host" else "" for one, other in pairs if one != other), "")
    if not label or len(names) == _NAMES:
        return False
    full = re.compile(rf"(?<![\w-]){re.escape(label)}(?:\.[\w-]+)*", re.IGNORECASE)
    chains = [match.split(".") for match in sorted(set(full.findall(text)))]
    tries = {".".join(chain[:end]) for chain in chains for end in range(1, len(chain) + 1)} - {*names}
    return any(_same(path, scrubbed, text, (*names, name)) for name in sorted(tries, key=len, reverse=True)[:_TRIES])


def _plain(name: str) -> bool:
    """Whether a host called NAME would take a word away that our readers look for: a folder, a unit, an argument."""
    return name.lower() in _PLAIN_NAMES


def _is_special(address: str) -> bool:
    octets = [int(part) for part in address.split(".")]
    return octets[0] in (0, 127, 255) or max(octets) > 255


def _accounts(text: str, fields: int) -> str:
    """System accounts with their numbers; people, and what a line says of them, are left out."""
    rows = []
    for line in text.splitlines():
        parts = line.split(":")
        if len(parts) >= fields and parts[2].isdigit() and (int(parts[2]) < 1000 or int(parts[2]) > 60000):
            rows.append(":".join((parts[0], "x", *parts[2:fields])) + (":" if fields == 3 else ":::"))
    return "".join(f"{row}\n" for row in rows)


def _mounts(text: str, *, fstab: bool) -> str:
    """The mounts of the system and all of hugetlbfs, with what lies over these; servers are not named."""
    lines = text.splitlines()
    split = [_mount_fields(line, fstab) for line in lines]
    huge = [point for _kind, point in split if _kind == "hugetlbfs"]
    rows = []
    for line, (kind, point) in zip(lines, split):
        over = any((path + "/").startswith(point.rstrip("/") + "/") for path in huge)
        if kind == "hugetlbfs" or (kind and (point in _SYSTEM_MOUNTS or over) and not _REMOTE.match(kind)):
            rows.append(_OVERLAY.sub(r"\1=removed", line))
    return "".join(f"{row}\n" for row in rows)


def _mount_fields(line: str, fstab: bool) -> tuple[str, str]:
    """(file system type, mount point) of a line of fstab, mounts or mountinfo; ("", "") for any other."""
    fields = line.split()
    if " - " in line and not fstab and len(fields) > 6:
        right = line.partition(" - ")[2].split()
        return (right[0], fields[4]) if right else ("", "")
    if len(fields) < 4 or fields[0].startswith("#"):
        return "", ""
    return fields[2], fields[1]
