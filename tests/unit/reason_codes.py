# SPDX-License-Identifier: GPL-3.0-or-later
"""The reason codes that host_verify can give, read from the source of all that it imports: whatever stands where a
reason is given. Run as a program it prints them with their files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
UTILS = PLUGINS / "module_utils"
ERRORS = ROOT / "runtime" / "src" / "firsttouch" / "errors.py"
CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# What the controller adds: about variables that nothing reads, and about answers that are none.
CONTROLLER = ("action/host_verify.py", "plugin_utils/_verify_record.py")
# What host_verify imports, and what gives it no reason.
ELSEWHERE = {
    "_hugetlb_cgroup": "what keeps from pages, which hugepages_info returns",
    "_hugepages": "warnings about pools, which hugepages_info returns",
    "_topology": "warnings about the topology, which verify returns as words",
    "_topology_cpus": "the same",
    "_topology_nodes": "the same",
    "_kubelet_apply": "writes",
    "_model_push": "writes",
    "_runtime_install": "writes",
    "_service_state": "writes",
    "_systemd_units": "writes",
}
# Calls whose argument at this place is a reason.
CALLS = {
    "skipped": 2, "not_applicable": 2, "Result": 5, "refuse": 0, "refused": 0, "BootError": 0, "Blocked": 0,
    "KubeletError": 0, "Live": 0, "NoLine": 0, "Problem": 0, "Refusal": 0, "ShellError": 0, "StateError": 0,
    "SysctlError": 0, "ThpError": 0, "Unsupported": 0, "WatermarkError": 0, "FifoAttempt": 1, "CpuListError": 1,
    "fail": 1, "_answer": 4,
}  # fmt: skip
# Variables, attributes, parameters and keys that hold a reason, or several by something else.
HOLDS = re.compile(r"reason|invalid|why|problem|lost|refused|hidden", re.IGNORECASE)
# A function that returns one says so in its name or docstring.
RETURNS = re.compile(r"reason|why|cause|hidden|unusable", re.IGNORECASE)
# Stand where a reason may stand, and are none.
NO_CODES = {"value": "the state of a sysctl that can be read"}


def texts(node: ast.expr | None) -> Iterator[str]:
    """The strings that NODE may be; of a tuple its first, of a mapping its values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for part in _parts(node):
        yield from texts(part)


def _parts(node: ast.expr | None) -> list[ast.expr]:
    """Where else in NODE its value may come from."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (ast.BoolOp, ast.Dict)):
        return node.values
    if isinstance(node, ast.Tuple):
        return node.elts[:1]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return [node.func.value, *node.args[1:]]
    return node.args if isinstance(node, ast.Call) and called(node) == "str" else []


def called(node: ast.Call) -> str:
    """The name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def bound(target: ast.expr, value: ast.expr | None) -> Iterator[str]:
    """What is a reason of VALUE that goes to TARGET."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts):
            yield from bound(one, part)
    key = target.slice if isinstance(target, ast.Subscript) else None
    held = target.value if isinstance(target, ast.Subscript) else target
    names = (getattr(held, "id", ""), getattr(held, "attr", ""), getattr(key, "value", ""))
    if any(isinstance(name, str) and HOLDS.search(name) for name in names):
        yield from texts(value)


class Codes(ast.NodeVisitor):
    """Collects in `found` all strings of a file that stand where a reason is given."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_keyword(self, node: ast.keyword) -> None:
        """NAME=value in a call."""
        if node.arg and HOLDS.search(node.arg):
            self.found.update(texts(node.value))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """NAME = value, also several at a time."""
        for target in node.targets:
            self.found.update(bound(target, node.value))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """NAME: type = value."""
        self.found.update(bound(node.target, node.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """A call that takes a reason by its place."""
        place = CALLS.get(called(node))
        if place is not None and len(node.args) > place:
            self.found.update(texts(node.args[place]))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """{"reason": value}."""
        for key, value in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and key.value == "reason":
                self.found.update(texts(value))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Defaults of parameters, what is returned, and loops over rows that are written out."""
        defaults = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        for argument, default in zip(defaults, node.args.defaults):
            if HOLDS.search(argument.arg):
                self.found.update(texts(default))
        told = RETURNS.search(f"{node.name} {ast.get_docstring(node)}")
        for inner in ast.walk(node):
            if isinstance(inner, ast.For):
                self.found.update(_rows(inner, node))
            elif isinstance(inner, (ast.Return, ast.Yield)):
                # (code, words) is a pair that says so itself.
                pair = isinstance(inner.value, ast.Tuple)
                self.found.update(text for text in texts(inner.value) if told or (pair and "_" in text))
        self.generic_visit(node)


def _rows(loop: ast.For, function: ast.AST) -> Iterator[str]:
    """The reasons of a loop over rows, which are written there or above in FUNCTION."""
    found: list[ast.expr] = [loop.iter]
    if isinstance(loop.iter, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == loop.iter.id for target in targets):
                    found.append(node.value)
    for value in found:
        for row in value.elts if isinstance(value, (ast.Tuple, ast.List)) else ():
            yield from bound(loop.target, row)


def given(source: str) -> set[str]:
    """All reasons of a SOURCE text."""
    visitor = Codes()
    visitor.visit(ast.parse(source))
    return {text for text in visitor.found if CODE.fullmatch(text) and text not in NO_CODES}


def sources() -> list[Path]:
    """host_verify, all that it imports, and what the controller adds."""
    todo, seen = [PLUGINS / "modules" / "host_verify.py"], set()
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += _imported(path)
    return [*sorted(path for path in seen if path.stem not in ELSEWHERE), *(PLUGINS / name for name in CONTROLLER)]


def _imported(path: Path) -> Iterable[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for name in (node.module or "", *(alias.name for alias in node.names)):
                found = UTILS / f"{name.rpartition('.')[2]}.py"
                if found.exists():
                    yield found


def codes() -> dict[str, set[str]]:
    """Each code, and the files that give it."""
    found: dict[str, set[str]] = {}
    for path in sources():
        for text in given(path.read_text()):
            found.setdefault(text, set()).add(path.stem)
    return found


def runtime_codes() -> set[str]:
    """The codes of the runtime's own errors, of which runtime.digest hands on those of `firsttouch weights verify`."""
    return set(re.findall(r'^    code(?:: ClassVar\[str\])? = "(\w+)"$', ERRORS.read_text(), re.MULTILINE))


if __name__ == "__main__":
    for code, files in sorted(codes().items()):
        print(code, *sorted(files))
