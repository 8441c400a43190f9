# SPDX-License-Identifier: Apache-2.0
"""CPU lists and masks by the kernel's rules (lib/bitmap-str.c: bitmap_parselist, bitmap_parse).

The kernel accepts a list as a whole or not at all: one CPU past the last one, one reversed range or one
stray letter voids every CPU in it. These functions raise in exactly those cases.
"""

from __future__ import annotations

from collections.abc import Iterable

# isspace() of lib/ctype.c: the byte 0xa0 counts too (decoded it is U+DCA0 or U+00A0).
_SPACE = frozenset(" \t\n\v\f\r\xa0\udca0")
_SEPARATOR = _SPACE | {","}
_END = frozenset(("", "\n"))
_REGION_END = _SEPARATOR | _END
_UINT_MAX = 2**32 - 1
# The text of sysfs and of requests is trusted to be short; without nr_cpu_ids this bounds the set instead.
_NO_LIMIT = 1 << 16


class CpuListError(ValueError):
    """A list or mask that the kernel refuses as a whole.

    reason: syntax | reversed_range | cpu_out_of_range | unknown_n; token: the offending piece of the text;
    first_bad, last_bad: the CPUs outside of the host for cpu_out_of_range, else None; before: the CPUs of the
    pieces in front of the offending one, which is what a caller in the kernel that ignores the error keeps.
    """

    def __init__(
        self, message: str, reason: str, token: str, first_bad: int | None = None, last_bad: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.token = token
        self.first_bad = first_bad
        self.last_bad = last_bad
        self.before: frozenset[int] = frozenset()


class _Region:
    """One parsed region, `start-end:used/group`, and the position behind it (None: the text ended)."""

    def __init__(self, start: int, end: int, used: int, group: int, after: int | None) -> None:
        self.start, self.end, self.used, self.group, self.after = start, end, used, group, after


class _Reader:
    """A cursor over the text of one list."""

    def __init__(self, text: str, nr_cpu_ids: int | None, aliases: frozenset[str]) -> None:
        self.text, self.nr_cpu_ids, self.aliases = text, nr_cpu_ids, aliases

    def at(self, pos: int) -> str:
        return self.text[pos : pos + 1]

    def piece(self, pos: int) -> str:
        """The text from POS up to the next separator, for messages."""
        end = pos
        while self.at(end) not in _REGION_END:
            end += 1
        return self.text[pos:end]

    def fail(self, start: int, reason: str, why: str) -> CpuListError:
        token = self.piece(start)
        return CpuListError(f"CPU list {self.text.strip()!r}: {token!r} {why}", reason, token)

    def last(self, start: int) -> int:
        if self.nr_cpu_ids is None:
            raise self.fail(
                start, "unknown_n", "depends on the number of CPUs of the host, which is not known here"
            )
        return self.nr_cpu_ids - 1

    def number(self, pos: int, start: int) -> tuple[int, int]:
        """bitmap_getnum: decimal digits or N; return the number and the position behind it."""
        if self.at(pos) == "N" and "N" in self.aliases:
            return self.last(start), pos + 1
        end = pos
        while self.at(end) and self.at(end) in "0123456789":
            end += 1
        if end == pos:
            raise self.fail(start, "syntax", "is not a CPU list the kernel can read")
        value = int(self.text[pos:end])
        if value > _UINT_MAX:
            raise self.fail(start, "cpu_out_of_range", "names a CPU past 32 bits")
        return value, end

    def region(self, start: int) -> _Region:
        """bitmap_parse_region: the region that begins at START."""
        if self.text[start : start + 3].lower() == "all" and "all" in self.aliases:
            low, high, pos = 0, self.last(start), start + 3
        else:
            low, pos = self.number(start, start)
            high = low
            if self.at(pos) not in _REGION_END:
                if self.at(pos) != "-":
                    raise self.fail(start, "syntax", "is not a CPU list the kernel can read")
                high, pos = self.number(pos + 1, start)
        if self.at(pos) in _REGION_END:
            return _Region(low, high, high + 1, high + 1, None if self.at(pos) in _END else pos)
        if self.at(pos) != ":":
            raise self.fail(start, "syntax", "is not a CPU list the kernel can read")
        used, pos = self.number(pos + 1, start)
        if self.at(pos) != "/":
            raise self.fail(start, "syntax", "has a stride that is not `:used/group`")
        group, pos = self.number(pos + 1, start)
        return _Region(low, high, used, group, pos)

    def check(self, region: _Region, start: int) -> None:
        """bitmap_check_region: order and limits of one region."""
        if region.start > region.end:
            raise self.fail(start, "reversed_range", "is a reversed range")
        if region.group == 0 or region.used > region.group:
            raise self.fail(start, "syntax", "has a stride whose group is zero or smaller than its used part")
        limit = _NO_LIMIT if self.nr_cpu_ids is None else self.nr_cpu_ids
        if region.end >= limit:
            first, token = max(region.start, limit), self.piece(start)
            text = f"{token!r} names CPU {first}, the last possible CPU is {limit - 1}"
            message = f"CPU list {self.text.strip()!r}: {text}"
            raise CpuListError(message, "cpu_out_of_range", token, first, region.end)


def parse(
    text: str, nr_cpu_ids: int | None = None, *, aliases: Iterable[str] = ("N", "all")
) -> frozenset[int]:
    """Return the CPUs (or nodes) that TEXT names, as bitmap_parselist of the kernel reads it.

    Pieces are separated by commas or white space, empty pieces are skipped; a piece is `a`, `a-b`,
    `a-b:used/group` or `all`; `N` is the last CPU, nr_cpu_ids - 1. A newline right behind a range ends the
    text. Without nr_cpu_ids there is no upper limit, and N and all cannot be resolved. ALIASES: the
    words the kernel knows (N from Linux 5.13, all from 5.14). Raises CpuListError; nothing is ever dropped.
    """
    reader = _Reader(text, nr_cpu_ids, frozenset(aliases))
    cpus: set[int] = set()
    pos: int | None = 0
    while pos is not None:
        while reader.at(pos) in _SEPARATOR:
            pos += 1
        if reader.at(pos) in _END:
            break
        try:
            region = reader.region(pos)
            reader.check(region, pos)
        except CpuListError as exc:
            exc.before = frozenset(cpus)
            raise
        for base in range(region.start, region.end + 1, region.group):
            cpus.update(range(base, min(base + region.used, region.end + 1)))
        pos = region.after
    return frozenset(cpus)


def format_list(cpus: Iterable[int]) -> str:
    """Return CPUS as the kernel prints a list (`%*pbl`): sorted, ranges joined, no spaces; "" for none."""
    pieces: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(set(cpus)), -1]:
        if run and cpu == run[-1] + 1:
            run.append(cpu)
            continue
        if run:
            pieces.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
        run = [cpu]
    return ",".join(pieces)


def parse_mask(text: str) -> frozenset[int]:
    """Return the CPUs of a hexadecimal mask as the kernel reads and prints it: `f`, `ff,00000000`.

    Words of at most eight digits, the most significant first, each standing for 32 CPUs. Raises CpuListError.
    """
    cpus: set[int] = set()
    words = text.strip().split(",")
    for index, word in enumerate(reversed(words)):
        digits = word.strip()
        if not digits or len(digits) > 8 or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise CpuListError(f"CPU mask {text.strip()!r}: {word!r} is not a word of a mask", "syntax", word)
        value = int(digits, 16)
        cpus.update(32 * index + bit for bit in range(32) if value >> bit & 1)
    return frozenset(cpus)
