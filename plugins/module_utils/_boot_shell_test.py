# SPDX-License-Identifier: Apache-2.0
"""The `test` command of the shell, evaluated over known and unknown arguments."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

from ._files import exists, resolve
from ._topology_host import MANIFEST

_INTEGER = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
# root, who runs grub-mkconfig, may read every file, and execute it where anybody may.
_FILE_TESTS: dict[str, Callable[[os.stat_result], bool]] = {
    "-e": lambda info: True,
    "-f": lambda info: stat.S_ISREG(info.st_mode),
    "-d": lambda info: stat.S_ISDIR(info.st_mode),
    "-r": lambda info: True,
    "-s": lambda info: info.st_size > 0,
    "-x": lambda info: stat.S_ISDIR(info.st_mode) or bool(info.st_mode & 0o111),
}
# What a recording has whole: what is not there was not on the host. Of all else it has what our readers look at, and
# programs, if at all, empty.
_WHOLE = re.compile(
    r"/etc/default/grub(\.d(/[^/]+)?)?|/sys/firmware/efi"
    r"|(/boot)?/(grub2?|(efi/)?EFI/[^/]+)/(grubenv|(grub|custom|user)\.cfg)"
)
_NUMBER = re.compile(r"[ \t\n]*[-+]?[0-9]+[ \t\n]*")


def may_lack(root: str, path: str) -> bool:
    """Whether ROOT is a recording of a host that may have PATH although it is not there."""
    return os.path.realpath(root) != "/" and exists(root, MANIFEST) and not _WHOLE.fullmatch(path)


class _BadTestError(Exception):
    """The shell complains about the test, which is not true then, with a `!` before it neither."""


def evaluate_test(fields: list[str | None], root: str) -> bool | None:
    """The result of `test FIELDS` by the POSIX rules for up to four arguments; None when unknown.

    A field None stands for an unknown one. Files are looked up inside the sysroot ROOT.
    """
    try:
        return _evaluate(fields, root)
    except _BadTestError:
        return False


def _evaluate(fields: list[str | None], root: str) -> bool | None:
    """The result of the test. Raises _BadTestError."""
    if len(fields) > 3 and fields[0] == "!":
        inner = _evaluate(fields[1:], root)
        return None if inner is None else not inner
    if not fields:
        return False
    if any(field is None for field in fields):
        return None
    known = [field for field in fields if field is not None]
    if len(known) == 1:
        return bool(known[0])
    if len(known) == 2:
        return not known[1] if known[0] == "!" else _unary(known[0], known[1], root)
    if len(known) == 3:
        result = _binary(known[0], known[1], known[2])
        if result is None and known[0] == "!":
            inner = _evaluate(list(known[1:]), root)
            return None if inner is None else not inner
        return result
    return None


def _unary(operator: str, operand: str, root: str) -> bool | None:
    if operator == "-n":
        return bool(operand)
    if operator == "-z":
        return not operand
    if not operator.startswith("-"):
        raise _BadTestError
    if operator not in _FILE_TESTS or not operand.startswith("/"):
        return None
    try:
        info = os.stat(resolve(root, operand))
    except (FileNotFoundError, NotADirectoryError):
        return None if may_lack(root, operand) else False
    except OSError:
        return None
    recorded_empty = not info.st_size and stat.S_ISREG(info.st_mode) and may_lack(root, operand)
    if recorded_empty and operator not in ("-e", "-r"):
        return None
    return _FILE_TESTS[operator](info)


def _binary(left: str, operator: str, right: str) -> bool | None:
    if operator == "=":
        return left == right
    if operator == "!=":
        return left != right
    if operator in _INTEGER:
        return bool(_INTEGER[operator](_number(left), _number(right)))
    return None


def _number(text: str) -> int:
    """TEXT as dash and bash read it, in 64 bits. Raises _BadTestError."""
    try:
        number = int(text) if _NUMBER.fullmatch(text) else None
    except ValueError:  # Python reads no number of thousands of digits
        number = None
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise _BadTestError
    return number
