# SPDX-License-Identifier: Apache-2.0
"""The kernel command line of each layer, for the checks, and what the kernel makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ._boot_report import Layers, read_layers
from ._boot_types import LineToken
from ._checks_host import Context
from ._cmdline import split
from ._kernel_args import KernelFacts, Prediction, predict


@dataclass(frozen=True)
class Line:
    """The kernel command line of one layer, in order, and where each token is written."""

    text: str
    facts: KernelFacts
    sources: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(token.text for token in split(self.text) if not token.after_dashes)


@dataclass(frozen=True)
class NoLine:
    """Why a layer has no command line to look at; `reason` is a code, `file` the path."""

    reason: str
    text: str
    file: str = ""


def layers_of(ctx: Context) -> Layers:
    """What the boot loader's files and the running kernel say, read once."""
    found: Layers = ctx.keep("boot_layers", lambda: read_layers(ctx.root))
    return found


def line_of(ctx: Context, layer: str) -> Line | NoLine:
    """The command line of LAYER, or why there is none."""
    layers = layers_of(ctx)
    if layer == "running":
        if layers.running is not None:
            return Line(layers.running, ctx.facts(), {}, "/proc/cmdline")
        return _no_line(layers, "/proc/cmdline")
    entry = layers.entry
    if layer == "next_boot" and entry:
        place = f"{entry.file}:{entry.file_line}" if entry.file else ""
        return Line(entry.whole, layers.facts, _sources(entry.tokens), place)
    if layer == "configured" and ctx.unrecorded("/etc/default", "/etc/kernel"):
        return NoLine("not_recorded", "the recording has no boot loader settings", "/etc/default")
    if layer == "configured" and layers.configured is not None:
        files = layers.backend.files() if layers.backend else []
        text = " ".join(token.text for token in layers.configured)
        return Line(text, layers.facts, _sources(layers.configured), files[0] if files else "")
    return _no_line(layers)


def _no_line(layers: Layers, path: str = "") -> NoLine:
    for problem in layers.problems:
        if not path or problem.file == path:
            return NoLine(problem.reason, problem.text, problem.where())
    return NoLine("not_available", "nothing says what it is", path)


def _sources(tokens: Iterable[LineToken]) -> dict[str, str]:
    return {token.text: str(token.source) for token in tokens if token.source}


def predicted(ctx: Context, layer: str) -> Prediction | None:
    """What the kernel makes of LAYER's line; None when there is no line to judge."""
    line = line_of(ctx, layer)
    if isinstance(line, NoLine):
        return None
    text, facts = line.text, line.facts
    found: Prediction = ctx.keep(f"predict:{layer}", lambda: predict(text, facts))
    return found
