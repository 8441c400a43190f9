# SPDX-License-Identifier: Apache-2.0
"""The `test` command of the shell, evaluated over known and unknown arguments."""

from __future__ import annotations

import os
import stat

from ._files import resolve

_INTEGER = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def evaluate_test(fields: list[str | None], root: str) -> bool | None:
    """The result of `test FIELDS` by the POSIX rules for up to four arguments; None when unknown.

    A field None stands for an unknown one. Files are looked up inside the sysroot ROOT.
    """
    if len(fields) > 3 and fields[0] == "!":
        inner = evaluate_test(fields[1:], root)
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
            inner = evaluate_test(list(known[1:]), root)
            return None if inner is None else not inner
        return result
    return None


def _unary(operator: str, operand: str, root: str) -> bool | None:
    if operator == "-n":
        return bool(operand)
    if operator == "-z":
        return not operand
    if not operator.startswith("-"):
        return False  # an error, which is not true either
    if operator not in ("-e", "-f", "-d", "-s") or not operand.startswith("/"):
        return None
    try:
        info = os.stat(resolve(root, operand))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    checks = {
        "-e": True,
        "-f": stat.S_ISREG(info.st_mode),
        "-d": stat.S_ISDIR(info.st_mode),
        "-s": info.st_size > 0,
    }
    return checks[operator]


def _binary(left: str, operator: str, right: str) -> bool | None:
    if operator == "=":
        return left == right
    if operator == "!=":
        return left != right
    if operator in _INTEGER:
        try:
            return bool(_INTEGER[operator](int(left, 10), int(right, 10)))
        except ValueError:
            return None
    return None
