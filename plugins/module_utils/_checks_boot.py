# SPDX-License-Identifier: Apache-2.0
"""Our boot arguments in three layers, what the kernel makes of each, and whether a reboot is due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from . import _cmdline
from ._boot_effect import Concern, beyond, contradicting, effect_of, ignored_by_kernel, needs_boot, shortfall
from ._boot_report import foreign_staged, overridden, verdict
from ._boot_types import LineToken
from ._checks_cpus import listed
from ._checks_host import CONFLICT, HUGEPAGES, ISOLATED, REBOOT, THP, Check, Context
from ._checks_lines import Line, NoLine, layers_of, line_of, predicted
from ._cpulist import format_list
from ._kernel_facts import KernelFacts
from ._kernel_numbers import memparse
from ._thp import ARGUMENT
from ._verdict import Result, judge, skipped

_POOL_KEYS = ("hugepages", "hugepagesz", "default_hugepagesz")
_UNKNOWN = ("permission_denied", "unreadable", "not_recorded", "unsupported_bootloader", "default_entry_not_found")
_CPU = "/sys/devices/system/cpu"
_TAKES_AWAY = re.compile(r"numa=(?:off|noacpi|fake=.*)|acpi=off")
_ONE_CPU = ("nosmp", "nolapic", "disableapic")
_NO_SMT = re.compile(r"nosmt(?:=force)?")
# On a CPU that has the flaw; mitigations= stands for all of them.
_MAY_TAKE_SMT = re.compile(
    r"(?:mitigations|l1tf|mds|tsx_async_abort|mmio_stale_data|retbleed)=(?:.*,)?nosmt(?:[,;].*)?|l1tf=full(?:,force)?"
)
# Takes a range of addresses away, or says which there are; SIZE@START adds one.
_MAY_TAKE_MEMORY = re.compile(r"memmap=(?:.*,)?[^@,]+(?:,.*)?")
_AT_MOST = re.compile(r"(maxcpus|nr_cpus|possible_cpus|mem)=(\d.*)")
# mem= is an address on x86, where memory that the hole below 4 GiB displaces lies above its amount.
_HOLE = 4 << 30


def variable_of(token: str) -> str:
    """The variable that asks for TOKEN."""
    if _is_key(token, _POOL_KEYS):
        return HUGEPAGES
    return THP if _is_key(token, (ARGUMENT,)) else ISOLATED


def _variables(tokens: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(variable_of(token) for token in tokens))


def _is_key(token: str, keys: Iterable[str]) -> bool:
    key = _cmdline.make(token).key
    return any(_cmdline.same_key(key, other) for other in keys)


def _asked(ctx: Context) -> bool:
    return bool(ctx.tokens())


def own_keys(ctx: Context) -> list[str]:
    """The keys that are ours, those of tokens that are to go included."""
    boot = ctx.plan.get("boot") or {}
    return list(
        dict.fromkeys([*(boot.get("keys") or []), *(_cmdline.make(token).key for token in ctx.tokens())])
    )


def _wanted(ctx: Context, layer: str) -> list[str]:
    """Our tokens that LAYER must have: what can be set live may come with the next boot only (its check says)."""
    return needs_boot(ctx.tokens()) if layer == "running" else ctx.tokens()


def _concern(ctx: Context, layer: str) -> Concern:
    keys = own_keys(ctx) if layer != "running" else needs_boot(own_keys(ctx))
    return Concern.of(_wanted(ctx, layer), ctx.facts(), keys)


def _lacks(ctx: Context, layer: str) -> str | None:
    """Why LAYER does not have our tokens as they must be; empty when it has, None when nobody can tell."""
    line = line_of(ctx, layer)
    if isinstance(line, NoLine):
        return None
    short = shortfall(line.text, _wanted(ctx, layer), line.facts)
    return short[0] if short and short[0] != "different_effect" else ""


def check_tokens(ctx: Context) -> Iterator[Result]:
    """Every token of ours, in order where order means something, in each of the three layers."""
    for layer in ("configured", "next_boot", "running"):
        wanted = _wanted(ctx, layer)
        if not wanted:
            continue
        identity, line = f"boot.tokens.{layer}", line_of(ctx, layer)
        if isinstance(line, NoLine):
            yield skipped(identity, layer, line.reason, expected=wanted, observed=line.text, source=line.file)
            continue
        lacks = _lacks(ctx, layer)
        reason, source, remedy = _why_missing(ctx, layer, lacks) if lacks else ("", "", "")
        yield judge(
            identity,
            layer,
            wanted,
            [token for token in line.tokens if _is_key(token, own_keys(ctx))],
            good=not lacks,
            reason=reason,
            source=source or line.sources.get(wanted[0], line.file),
            remedy=remedy,
        )


def _why_missing(ctx: Context, layer: str, lacks: str) -> tuple[str, str, str]:
    """(reason, FILE:LINE or nothing, remedy) for a LAYER that LACKS tokens, a reason of shortfall()."""
    names = _variables(_wanted(ctx, layer))
    if lacks != "missing_tokens":
        return (
            lacks,
            "",
            f"Run provision with {names}: the kernel does not read the arguments as they stand there.",
        )
    if layer == "running" and _lacks(ctx, "next_boot") == "":
        return "pending_reboot", "", f"Reboot, or run provision with {REBOOT}: if_needed; {names} is staged."
    told = verdict(layers_of(ctx), ctx.tokens())
    if layer != "running" and str(told["reason"]).startswith(("overridden_by", "not_generated")):
        where = f"{told['file']}:{told['line']}" if told["line"] else str(told["file"] or "")
        return told["reason"], where, f"Mend that, then run provision with {names}: {told['text']}."
    taken_off = overridden(layers_of(ctx), ctx.tokens()) if layer == "configured" else None
    if taken_off:
        remedy = f"Mend that, then run provision with {names}: {taken_off.text}."
        return taken_off.reason, taken_off.where(), remedy
    return "not_configured", "", f"Run provision with {names}: the next boot comes up without it."


def check_problems(ctx: Context) -> Iterator[Result]:
    """What keeps the boot loader's files from being understood, and entries that lack our tokens."""
    layers, tokens = layers_of(ctx), ctx.tokens()
    if not tokens:
        return
    for number, problem in enumerate(layers.problems, 1):
        identity = f"boot.problem.{number}"
        if problem.reason in _UNKNOWN or not ctx.live:
            source = problem.where()
            yield skipped(identity, "next_boot", problem.reason, observed=problem.text, source=source)
            continue
        yield judge(
            identity,
            "next_boot",
            None,
            problem.text,
            reason=problem.reason,
            source=problem.where(),
            remedy=f"Mend that file: until then nobody can tell whether {_variables(tokens)} will boot.",
        )
    entries = [
        entry
        for entry in (layers.backend.entries() if layers.backend else [])
        if not entry.recovery and not entry.default
    ]
    lacking = [entry.id for entry in entries if shortfall(entry.whole, tokens, layers.facts)]
    if entries:
        yield judge(
            "boot.entries",
            "next_boot",
            [],
            lacking,
            reason="entry_without_tokens",
            source=layers.entry.file or "" if layers.entry else "",
            remedy=f"Run provision with {_variables(tokens)}: whoever picks these entries boots without it.",
            soft=True,
        )


def check_removed(ctx: Context) -> Iterator[Result]:
    """What was ours and is not asked for any more must be gone, in all layers."""
    every = ctx.left_over("tokens")
    for layer in ("configured", "next_boot", "running"):
        left = needs_boot(every) if layer == "running" else every
        if not left:
            continue
        line = line_of(ctx, layer)
        if isinstance(line, NoLine):
            yield skipped(f"boot.removed.{layer}", layer, line.reason, observed=line.text, source=line.file)
            continue
        there = [token for token in left if token in line.tokens]
        following = line_of(ctx, "next_boot")
        pending = isinstance(following, Line) and not set(there) & set(following.tokens)
        staged = layer == "running" and pending
        remedy = f"Run provision with {_variables(left)} as it is, absent included"
        yield judge(
            f"boot.removed.{layer}",
            layer,
            [],
            there,
            reason="pending_reboot" if staged else "not_removed",
            source=next((line.sources[token] for token in there if token in line.sources), line.file),
            remedy=f"{remedy}, and {REBOOT}: if_needed." if staged else f"{remedy}.",
        )


def check_effect(ctx: Context) -> Iterator[Result]:
    """What the kernel makes of the COMPLETE line against what it would make of our tokens alone."""
    for layer in ("next_boot", "running"):
        tokens, concern = _wanted(ctx, layer), _concern(ctx, layer)
        if not tokens:
            continue
        line = line_of(ctx, layer)
        if isinstance(line, NoLine):
            continue  # check_tokens says why
        wanted = effect_of(" ".join(tokens), concern, line.facts)
        got = effect_of(line.text, concern, line.facts)
        differs = [name for name in wanted if got.get(name) != wanted[name]]
        against = _against(tokens, line) if differs else []
        ignored = ignored_by_kernel(line.text, tokens, line.facts)
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
                f"{' '.join(against)} stands against it, {CONFLICT}: replace takes it out."
                if against
                else ignored or "the arguments are not there."
            ),
        )


def _against(wanted: list[str], line: Line) -> list[str]:
    """The foreign tokens of LINE on account of which WANTED, ours, do not do what they ask."""
    if beyond(wanted, line.tokens):
        return []
    foreign = [LineToken(text) for text in beyond(line.tokens, wanted)]
    return [token.text for token in contradicting(foreign, wanted, line.facts)]


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
        live = listed(ctx, path)
        if live is None:
            continue  # the checks of cpu_isolation say so
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
    running, following = line_of(ctx, "running"), line_of(ctx, "next_boot")
    identity = "boot.pending_reboot"
    if isinstance(running, NoLine) or isinstance(following, NoLine):
        missing = running if isinstance(running, NoLine) else following
        reason = missing.reason if isinstance(missing, NoLine) else "not_available"
        yield skipped(identity, "next_boot", reason, source=missing.file, intended=_asked(ctx))
        return
    concern = _concern(ctx, "running")
    now = effect_of(running.text, concern, running.facts)
    then = effect_of(following.text, concern, following.facts)
    differs = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    intended = _asked(ctx) or bool(ctx.left_over("tokens"))
    yield judge(
        identity,
        "next_boot",
        {name: then.get(name) for name in differs},
        {name: now.get(name) for name in differs},
        reason="pending_reboot",
        source=following.file,
        remedy=f"Run provision with {REBOOT}: if_needed; the next boot changes {', '.join(differs)}.",
        intended=intended,
    )
    yield from _foreign_pending(ctx, running, following)


def _foreign_pending(ctx: Context, running: Line, following: Line) -> Iterator[Result]:
    """What else the next boot would change: other tokens, another kernel."""
    layers = layers_of(ctx)
    entry, places = layers.entry, layers.configured or []
    kernels = (running.facts.release, entry.version if entry and entry.version else running.facts.release)
    rows: tuple[tuple[str, list[str], str, str, str], ...] = (
        (
            "foreign_staged",
            foreign_staged(running.text, following.text, entry, places, ctx.tokens(), own_keys(ctx)),
            "foreign_staged",
            following.file,
            "Somebody else staged boot arguments: they come with the next reboot.",
        ),
        (
            "kernel",
            [f"{kernels[0]} runs, {kernels[1]} boots next"] if kernels[0] != kernels[1] else [],
            "kernel_changes",
            following.file,
            "The next boot brings another kernel: verify again after it.",
        ),
    )
    for name, found, reason, source, remedy in rows:
        yield judge(
            f"boot.{name}",
            "next_boot",
            [],
            found,
            reason=reason,
            source=source,
            remedy=remedy,
            intended=False,
        )


def _meanings(line: Line) -> dict[str, str]:
    """{text: KEY=VALUE as the kernel takes it} of each token of LINE: quotes are no part of it."""
    read = [token for token in _cmdline.split(line.text) if not token.after_dashes]
    keys = {token.text: _cmdline.normal_key(token.key) for token in read}
    return {token.text: keys[token.text] + ("" if token.value is None else f"={token.value}") for token in read}


def _takes_away(ctx: Context, meant: str, running: Iterable[str], facts: KernelFacts) -> bool | None:
    """Whether the next boot has less by MEANT than a kernel with FACTS that was started with RUNNING.

    None for what may take something, or so little that nobody misses it.
    """
    if _NO_SMT.fullmatch(meant) or _MAY_TAKE_SMT.fullmatch(meant):
        return False if _single_threads(ctx) else bool(_NO_SMT.fullmatch(meant)) or None
    if _MAY_TAKE_MEMORY.fullmatch(meant):
        return None
    limit = _AT_MOST.fullmatch(meant)
    if not limit:
        return bool(_TAKES_AWAY.fullmatch(meant)) or (meant in _ONE_CPU and len(facts.present) != 1)
    key, number = limit.group(1), memparse(limit.group(2))[0]
    others = [other for text in running if (other := _AT_MOST.fullmatch(text)) and other.group(1) == key]
    has = (facts.memory_bytes or 0) + _HOLE * bool(facts.memory_bytes) if key == "mem" else len(facts.present)
    enough = [memparse(other.group(2))[0] for other in others] + [has] * bool(has)
    return not enough or number < min(enough)


def _single_threads(ctx: Context) -> bool:
    """Whether every online CPU is known to have a core for itself."""
    online = listed(ctx, f"{_CPU}/online")
    return bool(online) and all(
        listed(ctx, f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") == frozenset((cpu,)) for cpu in online or ()
    )


def check_hardware(ctx: Context) -> Iterator[Result]:
    """Arguments of others that are staged and take nodes, CPUs or memory away: what is planned has no place then."""
    running, following = line_of(ctx, "running"), line_of(ctx, "next_boot")
    if isinstance(running, NoLine) or isinstance(following, NoLine) or not ctx.tokens():
        return
    now = _meanings(running)
    staged = [(text, meant) for text, meant in _meanings(following).items() if meant not in now.values()]
    takes = {text: _takes_away(ctx, meant, list(now.values()), running.facts) for text, meant in staged}
    taking = [text for text in takes if takes[text] is not False]
    first = next((text for text in taking if takes[text]), taking[0] if taking else "")
    names = " and ".join(dict.fromkeys(variable_of(token) for token in ctx.tokens()))
    yield judge(
        "boot.hardware",
        "next_boot",
        [],
        taking,
        reason="foreign_token",
        source=following.sources.get(first, following.file),
        remedy=f"Take it out there: with it the next boot lacks what {names} count on; or plan anew after it.",
        soft=not any(takes.values()),
    )


def check_reboot_required(ctx: Context) -> Iterator[Result]:
    """What packages ask for, where both lines are known."""
    if any(isinstance(line_of(ctx, layer), NoLine) for layer in ("running", "next_boot")):
        return
    packages = (ctx.text("/run/reboot-required.pkgs") or "").split()
    marked = ctx.text("/run/reboot-required") is not None
    yield judge(
        "boot.reboot_required",
        "next_boot",
        [],
        (sorted(set(packages)) or ["some package"]) if marked else [],
        reason="packages_want_reboot",
        source="/run/reboot-required",
        remedy="Packages ask for a reboot; nothing of ours needs it.",
        intended=False,
    )


CHECKS = (
    Check("boot.problem", ("next_boot",), check_problems, _asked),
    Check("boot.tokens", ("configured", "next_boot", "running"), check_tokens, _asked),
    Check(
        "boot.removed",
        ("configured", "next_boot", "running"),
        check_removed,
        lambda ctx: bool(ctx.left_over("tokens")),
    ),
    Check("boot.effect", ("next_boot", "running"), check_effect, _asked),
    Check("boot.accepted", ("running",), check_accepted, _asked),
    Check("boot.pending_reboot", ("next_boot",), check_pending_reboot, _asked),
    Check("boot.hardware", ("next_boot",), check_hardware, _asked),
    Check("boot.reboot_required", ("next_boot",), check_reboot_required, lambda ctx: False),
)
