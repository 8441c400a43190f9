# SPDX-License-Identifier: Apache-2.0
"""Transparent huge pages: the live modes, our file, who wins over it. The boot argument is checked with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import _thp
from ._checks_host import THP, Check, Context
from ._verdict import Result, judge, not_applicable, skipped

_STRENGTH = ("never", "madvise", "always")


def _settings(ctx: Context) -> Mapping[str, str]:
    found: Mapping[str, str] = ctx.section("thp").get("settings") or {}
    return found


def _asked(ctx: Context) -> bool:
    return "thp" in (ctx.section("thp").get("variables") or ())


def check_mode(ctx: Context) -> Iterator[Result]:
    """The running modes; unasked, `always` lets any thread stall on compaction at a page fault."""
    if not _asked(ctx):
        yield _unasked(ctx)
        return
    if not _settings(ctx):  # planned for a kernel that has none, where `never` is so already
        yield _absent(ctx)
    for name, wanted in _settings(ctx).items():
        identity, path = f"thp.{'mode' if name == 'enabled' else name}", f"{_thp.DIRECTORY}/{name}"
        text = ctx.text(path)
        if text is None and not ctx.live:
            yield skipped(identity, "running", "not_recorded", expected=wanted, source=path)
            continue
        live = _thp.choices(text)[1] if text is not None else None
        yield judge(
            identity,
            "running",
            wanted,
            live,
            reason="unsupported" if text is None else "wrong_value",
            source=path,
            remedy=f"Run provision with {THP}; it takes effect without a reboot.",
        )


def _unasked(ctx: Context) -> Result:
    path = f"{_thp.DIRECTORY}/enabled"
    text = ctx.text(path)
    if text is None:
        reason = "unsupported" if ctx.live else "not_available"
        return not_applicable("thp.mode", "running", reason, source=path)
    mode = _thp.choices(text)[1] or text
    return judge(
        "thp.mode",
        "running",
        None,
        mode,
        good=mode != "always",
        reason="thp_always",
        source=path,
        remedy=f"Set {THP} to madvise.",
        intended=False,
    )


def _absent(ctx: Context) -> Result:
    path = f"{_thp.DIRECTORY}/enabled"
    text = ctx.text(path)
    if text is None and not ctx.live:
        return skipped("thp.mode", "running", "not_recorded", expected="never", source=path)
    return judge(
        "thp.mode",
        "running",
        "never",
        "never" if text is None else _thp.choices(text)[1],
        reason="wrong_value",
        source=path,
        remedy=f"Run provision with {THP}: this kernel has it, the one planned for had not.",
    )


def check_sizes(ctx: Context) -> Iterator[Result]:
    """Sizes that do more than the mode asked for: each has a mode of its own, and only `inherit` follows ours."""
    wanted = _settings(ctx).get("enabled")
    if wanted is None:
        return
    stronger, source = [], ""
    for entry in ctx.names(_thp.DIRECTORY) or []:
        path = f"{_thp.DIRECTORY}/{entry}/enabled"
        mode = _thp.choices(ctx.text(path) or "")[1] if entry.startswith("hugepages-") else None
        if mode in _STRENGTH and _STRENGTH.index(mode) > _STRENGTH.index(wanted):
            stronger.append(f"{entry[len('hugepages-') :]}: {mode}")
            source = source or path
    yield judge(
        "thp.sizes",
        "running",
        [],
        stronger,
        reason="overridden_by",
        source=source or _thp.DIRECTORY,
        remedy=f"Write inherit there, or these sizes do not follow {THP}; look for who sets them at boot.",
        soft=True,
    )


def check_file(ctx: Context) -> Iterator[Result]:
    """Our file as planned, and nobody whose line wins over it at boot."""
    text = ctx.raw(_thp.FILE)
    wanted = _thp.render(_settings(ctx))
    if ctx.unrecorded("/etc/tmpfiles.d", "/usr/lib/tmpfiles.d"):
        if wanted:
            yield skipped("thp.file", "configured", "not_recorded", source=_thp.FILE)
        return
    if wanted or text is not None:
        reason = "not_removed" if not wanted else "not_configured" if text is None else "changed_by_hand"
        yield judge(
            "thp.file",
            "configured",
            "as planned" if wanted else None,
            None if text is None else "as planned" if text == wanted else "different",
            reason=reason,
            source=_thp.FILE,
            remedy=f"Run provision with {THP} as it is, absent included.",
            intended=(ctx.plan.get("sections") or {}).get("thp") is not None,
        )
    yield from _winners(ctx)


def _winners(ctx: Context) -> Iterator[Result]:
    last = {row.name: row for row in _thp.winners(ctx.root)} if _settings(ctx) else {}
    for name, wanted in _settings(ctx).items():
        row = last.get(name)
        yield judge(
            f"thp.next_boot.{name}",
            "next_boot",
            wanted,
            row.value if row else wanted,
            reason="overridden_by",
            source=f"{row.file}:{row.line}" if row else _thp.FILE,
            remedy=f"Take the line out of that file: {THP} owns {name}.",
        )


CHECKS = (
    Check("thp.mode", ("running",), check_mode, _asked),
    Check("thp.sizes", ("running",), check_sizes, _asked),
    Check("thp.file", ("configured", "next_boot"), check_file, _asked),
)
