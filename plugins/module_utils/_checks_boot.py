# SPDX-License-Identifier: Apache-2.0
"""Our boot arguments in three layers, what the kernel makes of each, and whether a reboot is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from . import _cmdline
from ._boot_effect import Concern, contradicting, effect_of, ignored_by_kernel, shortfall
from ._boot_types import LineToken
from ._checks_host import HUGEPAGES, ISOLATED, REBOOT, Check, Context, Unreadable
from ._cpulist import format_list, parse
from ._kernel_args import Prediction, predict
from ._verdict import Result, judge, skipped

_POOL_KEYS = ("hugepages", "hugepagesz", "default_hugepagesz")
_CPU = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class Line:
    """The kernel command line of one layer: the tokens the kernel reads, in order, and where each is written."""

    text: str
    tokens: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class NoLine:
    """Why a layer has no command line to look at; `reason` is a code, `file` the path."""

    reason: str
    text: str
    file: str = ""


def line_of(ctx: Context, layer: str) -> Line | NoLine:
    """The command line of LAYER, read once."""
    found: Line | NoLine = ctx.keep(f"line:{layer}", lambda: _read(ctx, layer))
    return found


def _read(ctx: Context, layer: str) -> Line | NoLine:
    if layer == "running":
        text = ctx.text("/proc/cmdline")
        if text is None:
            return NoLine("not_available", "/proc/cmdline does not exist", "/proc/cmdline")
        return Line(text, _read_by_kernel(text), {}, "/proc/cmdline", ctx.facts().release or "")
    return NoLine("not_available", "the boot loader is not read")


def _read_by_kernel(text: str) -> tuple[str, ...]:
    return tuple(token.text for token in _cmdline.split(text) if not token.after_dashes)


def predicted(ctx: Context, layer: str) -> Prediction | None:
    """What the kernel makes of LAYER's line; None when there is no line to judge."""
    try:
        line = line_of(ctx, layer)
    except Unreadable:
        return None
    if isinstance(line, NoLine):
        return None
    text = line.text
    found: Prediction = ctx.keep(f"predict:{layer}", lambda: predict(text, ctx.facts()))
    return found


def variable_of(token: str) -> str:
    """The variable that asks for TOKEN."""
    return HUGEPAGES if _is_key(token, _POOL_KEYS) else ISOLATED


def _variables(tokens: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(variable_of(token) for token in tokens))


def _is_key(token: str, keys: Iterable[str]) -> bool:
    key = _cmdline.make(token).key
    return any(_cmdline.same_key(key, other) for other in keys)


def _asked(ctx: Context) -> bool:
    return bool(ctx.tokens())


def _keys(ctx: Context) -> list[str]:
    """The keys that are ours, those of tokens that are to go included."""
    boot = ctx.plan.get("boot") or {}
    return list(
        dict.fromkeys([*(boot.get("keys") or []), *(_cmdline.make(token).key for token in ctx.tokens())])
    )


def _concern(ctx: Context) -> Concern:
    return Concern.of(ctx.tokens(), ctx.facts(), _keys(ctx))


def _try_line(ctx: Context, layer: str) -> Line | NoLine:
    """line_of(), a refused read being one more way of not knowing."""
    try:
        return line_of(ctx, layer)
    except Unreadable as exc:
        return NoLine(exc.reason, str(exc), exc.path)


def _lacks(ctx: Context, layer: str) -> str | None:
    """`` when LAYER has our tokens, in order and read by the kernel; else why not. None: it cannot be looked at."""
    line = _try_line(ctx, layer)
    if isinstance(line, NoLine):
        return None
    short = shortfall(line.text, ctx.tokens(), ctx.facts())
    return short[0] if short and short[0] != "different_effect" else ""


def check_tokens(ctx: Context) -> Iterator[Result]:
    """Every token of ours, ordered where order has a meaning, in what is configured, what will boot, what runs."""
    wanted = ctx.tokens()
    for layer in ("configured", "next_boot", "running") if wanted else ():
        identity, line = f"boot.tokens.{layer}", _try_line(ctx, layer)
        if isinstance(line, NoLine):
            yield skipped(identity, layer, line.reason, expected=wanted, observed=line.text, source=line.file)
            continue
        lacks = _lacks(ctx, layer)
        reason, remedy = _why_missing(ctx, layer, lacks) if lacks else ("", "")
        yield judge(
            identity,
            layer,
            wanted,
            [token for token in line.tokens if _is_key(token, _keys(ctx))],
            good=not lacks,
            reason=reason,
            source=line.sources.get(wanted[0], line.file),
            remedy=remedy,
        )


def _why_missing(ctx: Context, layer: str, lacks: str) -> tuple[str, str]:
    """(reason, remedy) for a layer that LACKS (a reason of shortfall()) tokens of ours."""
    names = _variables(ctx.tokens())
    if lacks != "missing_tokens":
        return (
            lacks,
            f"Run provision with {names}: the kernel does not read the arguments as they stand there.",
        )
    if layer == "running":
        if _lacks(ctx, "next_boot") == "":
            return "pending_reboot", f"Reboot, or run provision with {REBOOT}: if_needed; {names} is staged."
        return "not_configured", f"Run provision with {names}."
    if layer == "next_boot" and _lacks(ctx, "configured") == "":
        text = "the configured arguments do not reach the entry that boots, another file overrides them."
        return "not_generated", f"Run provision with {names}: {text}"
    return "not_configured", f"Run provision with {names}: the next boot comes up without it."


def check_effect(ctx: Context) -> Iterator[Result]:
    """What the kernel makes of the COMPLETE line, foreign tokens included, against what it would make of ours alone."""
    tokens, facts = ctx.tokens(), ctx.facts()
    concern = _concern(ctx)
    wanted = effect_of(" ".join(tokens), concern, facts)
    for layer in ("next_boot", "running") if tokens else ():
        line = _try_line(ctx, layer)
        if isinstance(line, NoLine):
            continue  # check_tokens says why
        got = effect_of(line.text, concern, facts)
        differs = [name for name in wanted if got.get(name) != wanted[name]]
        against = _against(ctx, line) if differs else []
        ignored = ignored_by_kernel(line.text, tokens, facts)
        reason = "overridden_by" if against else "kernel_ignores" if ignored else "not_configured"
        if differs and layer == "running" and _lacks(ctx, "next_boot") == "" and _lacks(ctx, "running"):
            reason = "pending_reboot"
        yield judge(
            f"boot.effect.{layer}",
            layer,
            {name: wanted[name] for name in differs or wanted},
            {name: got.get(name) for name in differs or wanted},
            good=not differs,
            reason=reason,
            source=next((line.sources[text] for text in against if text in line.sources), line.file),
            remedy=f"Run provision with {_variables(tokens)}: "
            + (
                f"{' '.join(against)} stands against it."
                if against
                else ignored or "the arguments are not there."
            ),
        )


def _against(ctx: Context, line: Line) -> list[str]:
    """The foreign tokens of LINE on account of which ours do not do what they ask."""
    foreign, ours = [], list(ctx.tokens())
    for token in line.tokens:
        if token in ours:
            ours.remove(token)
        else:
            foreign.append(LineToken(token))
    if ours:
        return []
    return [token.text for token in contradicting(foreign, ctx.tokens(), ctx.facts())]


def check_accepted(ctx: Context) -> Iterator[Result]:
    """The kernel's own files against what it should make of the line it runs: present is not accepted."""
    prediction = predicted(ctx, "running")
    if prediction is None:
        return
    rows = (
        ("isolated", f"{_CPU}/isolated", prediction.isolation.domain),
        ("nohz_full", f"{_CPU}/nohz_full", prediction.isolation.nohz_full),
    )
    intended = bool(ctx.section("cpu_isolation"))
    for name, path, wanted in rows:
        text = ctx.text(path)
        if text is None:
            continue  # the checks of cpu_isolation say so
        live = parse("" if text == "(null)" else text)
        yield judge(
            f"boot.accepted.{name}",
            "running",
            format_list(wanted),
            format_list(live),
            reason="kernel_refused",
            source=path,
            remedy=f"The kernel did not take {ISOLATED} as written: dmesg has its complaint.",
            intended=intended,
        )


def check_pending_reboot(ctx: Context) -> Iterator[Result]:
    """A reboot is due when the effect of our arguments differs between what runs and what will boot."""
    running, following = predicted(ctx, "running"), predicted(ctx, "next_boot")
    identity = "boot.pending_reboot"
    if running is None or following is None:
        yield skipped(identity, "next_boot", "not_available", source="/proc/cmdline", intended=_asked(ctx))
        return
    concern, facts = _concern(ctx), ctx.facts()
    now, then = (effect_of(_text(ctx, layer), concern, facts) for layer in ("running", "next_boot"))
    differs = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    yield judge(
        identity,
        "next_boot",
        {name: then.get(name) for name in differs},
        {name: now.get(name) for name in differs},
        reason="pending_reboot",
        source=_file(ctx, "next_boot"),
        remedy=f"Run provision with {REBOOT}: if_needed; the next boot changes {', '.join(differs) or 'nothing'}.",
        intended=_asked(ctx),
    )
    yield from _foreign_pending(ctx)


def _text(ctx: Context, layer: str) -> str:
    line = line_of(ctx, layer)
    return line.text


def _file(ctx: Context, layer: str) -> str:
    return line_of(ctx, layer).file


def _foreign_pending(ctx: Context) -> Iterator[Result]:
    """What else the next boot would change: other tokens, another kernel, what packages ask for."""
    running, following = line_of(ctx, "running"), line_of(ctx, "next_boot")
    assert isinstance(running, Line) and isinstance(following, Line)
    keys = (*_keys(ctx), "BOOT_IMAGE", "initrd")
    now = [token for token in running.tokens if not _is_key(token, keys)]
    then = [token for token in following.tokens if not _is_key(token, keys)]
    if now != then:
        yield judge(
            "boot.foreign_staged",
            "next_boot",
            now,
            then,
            reason="foreign_staged",
            source=following.file,
            remedy="Somebody else staged boot arguments: they come with the next reboot.",
            intended=False,
        )
    if following.kernel and running.kernel and following.kernel != running.kernel:
        yield judge(
            "boot.kernel",
            "next_boot",
            running.kernel,
            following.kernel,
            reason="kernel_changes",
            source=following.file,
            remedy="The next boot brings another kernel: verify again after it.",
            intended=False,
        )
    marker = ctx.text("/run/reboot-required")
    if marker is not None:
        packages = (ctx.text("/run/reboot-required.pkgs") or "").split()
        yield judge(
            "boot.reboot_required",
            "running",
            [],
            sorted(set(packages)) or ["unknown"],
            reason="packages_want_reboot",
            source="/run/reboot-required",
            remedy="Packages ask for a reboot; nothing of ours needs it.",
            intended=False,
        )


CHECKS = (
    Check("boot.tokens", ("configured", "next_boot", "running"), check_tokens, _asked),
    Check("boot.effect", ("next_boot", "running"), check_effect, _asked),
    Check("boot.accepted", ("running",), check_accepted, _asked),
    Check("boot.pending_reboot", ("next_boot", "running"), check_pending_reboot, _asked),
)
