# SPDX-License-Identifier: Apache-2.0
"""What is on the isolated CPUs that should not be there: interrupts, user threads, unbound kernel work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ._checks_cpus import asked, asked_by, listed
from ._checks_host import IRQBALANCE, ISOLATED, Check, Context
from ._checks_lines import predicted
from ._cpulist import format_list, parse_mask
from ._irqs import IRQ_DIR, NOT_RECORDED, Irq, read_irqs
from ._threads import PROC, Thread, Threads, allowed_cpus, control_group, read_threads
from ._tree import Tree
from ._verdict import Result, judge, not_applicable, skipped

_CPU = "/sys/devices/system/cpu"
_WORKQUEUES = "/sys/devices/virtual/workqueue/cpumask"
_SHOWN = 40
_OURS = "firsttouch"


def _isolated(ctx: Context, identity: str) -> frozenset[int] | Result:
    """The CPUs that the kernel isolates now, or the answer when there are none: then nothing can sit there."""
    path = f"{_CPU}/isolated"
    live = listed(ctx, path)
    if live:
        return live
    if live is None:
        return skipped(identity, "running", "not_available", source=path, intended=asked(ctx))
    if asked(ctx):
        return skipped(identity, "running", "not_isolated", source=path)
    return not_applicable(identity, "running", "nothing_isolated", source=path)


def check_irqs(ctx: Context) -> Iterator[Result]:
    """Interrupts that are delivered to isolated CPUs.

    Those that user space cannot move are told apart where the kernel tells: a managed interrupt whose CPUs are
    all isolated only comes when one of them does that I/O (isolcpus=managed_irq, kernel-parameters.txt).
    """
    identity = "cpu_isolation.irqs"
    cpus = _isolated(ctx, identity)
    if isinstance(cpus, Result):
        yield cpus
        return
    tree = Tree(ctx.root)
    irqs = read_irqs(tree, ctx.facts().version if ctx.facts().version_known else (0,), ctx.live)
    if tree.trouble or not irqs:
        # What a recording lacks says less than what could not be read.
        order = sorted(tree.trouble.items(), key=lambda item: (item[1] == NOT_RECORDED, item))
        path, why = order[0] if order else (IRQ_DIR, "")
        reason = "permission_denied" if "ermi" in why else "unreadable" if why else "not_available"
        if not ctx.live and why in ("", NOT_RECORDED):
            reason = "not_recorded"
        intended = asked(ctx) and reason != "not_recorded"
        yield skipped(identity, "running", reason, observed=why or None, source=path, intended=intended)
        if not irqs:
            return
    kinds = {irq.number: _kind(irq, cpus) for irq in irqs}
    sure, maybe, held, fixed = (
        [irq for irq in irqs if kinds[irq.number] == kind] for kind in ("on", "maybe", "held", "fixed")
    )
    if sure or not tree.trouble:
        yield judge(
            identity if not tree.trouble else f"{identity}.found",
            "running",
            [],
            _rows(sure),
            reason="irq_on_isolated_cpu",
            source=_irq_file(sure[0], cpus) if sure else IRQ_DIR,
            remedy=f"{_move(ctx, sure, cpus)} {ISOLATED} keeps new ones off from the next boot on, {IRQBALANCE}: "
            "ban_isolated keeps irqbalance from moving them back.",
            intended=asked(ctx),
        )
    if maybe:
        yield judge(
            f"{identity}.unsure",
            "running",
            [],
            _rows(maybe),
            reason="irq_may_be_managed",
            source=_irq_file(maybe[0], cpus),
            remedy=f"This kernel does not tell managed interrupts apart: {_move(ctx, maybe, cpus)} Where that is "
            f"refused it is managed and belongs there; {ISOLATED} names the CPUs.",
            intended=asked(ctx),
            soft=True,
        )
    if held:
        yield judge(
            f"{identity}.held",
            "running",
            [],
            _rows(held),
            reason="irq_cannot_be_moved",
            source=_irq_file(held[0], cpus),
            remedy=f"The kernel lets nobody move them: isolcpus=managed_irq, which {ISOLATED} gives, keeps managed "
            "ones off from the next boot on.",
            intended=asked(ctx),
            soft=True,
        )
    if fixed:
        yield Result(
            f"{identity}.managed", "pass", "running", None, _rows(fixed), "", _irq_file(fixed[0], cpus), "", False
        )


def _kind(irq: Irq, cpus: frozenset[int]) -> str:
    """What IRQ is to CPUS: `on` it and need not be, `held` there by the kernel although it may go elsewhere, `fixed`
    to them, `maybe` one of these where nobody can tell; empty when it is not there."""
    where = irq.effective
    if where is None:
        # The kernel does not say where it goes: only what already came there counts.
        return "maybe" if irq.allowed and irq.allowed & cpus and irq.came_to(cpus) else ""
    if not where & cpus:
        return _kind_later(irq, cpus)
    elsewhere = bool(irq.allowed and irq.allowed - cpus)
    if irq.fixed:
        return "held" if elsewhere else "fixed"
    return "maybe" if irq.fixed is None and not elsewhere else "on"


def _kind_later(irq: Irq, cpus: frozenset[int]) -> str:
    """_kind() of what is elsewhere now: a new mask may only count from the next interrupt on (irq/migration.c)."""
    if irq.fixed or not irq.allowed or irq.allowed - cpus:
        return ""
    return "maybe" if irq.fixed is None else "on"


def _irq_file(irq: Irq, cpus: frozenset[int]) -> str:
    there = irq.effective is not None and irq.effective & cpus
    name = "effective_affinity_list" if there else "smp_affinity_list"
    return f"{IRQ_DIR}/{irq.number}/{name}"


def _rows(irqs: Sequence[Irq]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "irq": irq.number,
            "name": irq.name,
            "cpus": format_list(irq.effective or irq.allowed or frozenset()),
            "allowed": format_list(irq.allowed or frozenset()),
        }
        for irq in irqs[:_SHOWN]
    ]
    return rows if len(irqs) <= _SHOWN else [*rows, {"more": len(irqs) - _SHOWN}]


def _move(ctx: Context, irqs: Sequence[Irq], cpus: frozenset[int]) -> str:
    if not irqs:
        return ""
    keep = (irqs[0].allowed or frozenset()) - cpus
    target = format_list(keep) if keep else _housekeeping(ctx, cpus)
    return f"Move it: echo {target} > {IRQ_DIR}/{irqs[0].number}/smp_affinity_list."


def _housekeeping(ctx: Context, cpus: frozenset[int]) -> str:
    """All CPUs that are not among CPUS, the isolated ones, as a list."""
    online = listed(ctx, f"{_CPU}/online") or frozenset()
    return format_list(online - cpus) or "HOUSEKEEPING_CPUS"


def _threads(ctx: Context) -> Threads:
    found: Threads = ctx.keep("threads", lambda: read_threads(Tree(ctx.root), ctx.live))
    return found


def check_threads(ctx: Context) -> Iterator[Result]:
    """User threads on isolated CPUs that are not the runtime's: at most a warning, no variable moves a thread.

    Where a thread runs counts, or ran last while it sleeps: it wakes there again. That it may run there means
    nothing: without load balancing it never goes there by itself.
    """
    identity = "cpu_isolation.threads"
    cpus = _isolated(ctx, identity)
    if isinstance(cpus, Result):
        yield cpus
        return
    threads, tree = _threads(ctx), Tree(ctx.root)
    there = [thread for thread in threads.found if thread.cpu in cpus and not thread.kernel]
    there = [thread for thread in there if thread.state not in ("Z", "X")]
    groups = {thread.pid: control_group(tree, thread.pid) for thread in there}
    strangers = [thread for thread in there if not _ours(groups[thread.pid])]
    if strangers or not threads.hidden:
        rows: list[dict[str, Any]] = [_row(tree, thread) for thread in strangers[:_SHOWN]]
        if len(strangers) > _SHOWN:
            rows.append({"more": len(strangers) - _SHOWN})
        yield judge(
            identity,
            "running",
            [],
            rows,
            reason="user_thread_on_isolated_cpu",
            source=strangers[0].stat if strangers else PROC,
            remedy=_take_away(ctx, strangers, cpus),
            intended=asked(ctx),
            soft=True,
        )
    if threads.hidden:
        reason, path = threads.hidden
        yield skipped(
            f"{identity}.hidden" if strangers else identity,
            "running",
            reason,
            source=path,
            intended=asked(ctx) and reason != "not_recorded",
            remedy="Not all threads could be seen: run the verification as root, and on the host itself.",
        )


def _ours(group: str) -> bool:
    """Whether a control group belongs to a unit of the runtime (firsttouch.service, firsttouch-serve@a.service)."""
    return any(part.startswith(_OURS) for part in group.split("/"))


def _row(tree: Tree, thread: Thread) -> dict[str, Any]:
    return {
        "pid": thread.pid,
        "tid": thread.tid,
        "command": thread.command,
        "state": thread.state,
        "cpu": thread.cpu,
        "allowed": allowed_cpus(tree, thread),
    }


def _take_away(ctx: Context, strangers: Sequence[Thread], cpus: frozenset[int]) -> str:
    if not strangers:
        return ""
    first = strangers[0]
    return (
        f"Move it with taskset -pc {_housekeeping(ctx, cpus)} {first.tid} or CPUAffinity= in its unit, or take the CPU "
        f"out of {ISOLATED}; {format_list(cpus)} should run pinned workers only."
    )


def check_rcu_threads(ctx: Context) -> Iterator[Result]:
    """Whether the kernel took the rcu_nocbs= it runs with: it then has a thread rcuop/N or rcuos/N for each CPU.

    From Linux 5.17 for every other CPU too, so that they can be added later (kernel/rcu/tree_nocb.h).
    """
    prediction, identity = predicted(ctx, "running"), "boot.accepted.rcu_nocbs"
    possible = listed(ctx, f"{_CPU}/online")
    wanted = prediction.isolation.rcu_nocbs if prediction else frozenset()
    wanted = wanted & possible if possible else wanted
    if not wanted:
        return  # cpu_isolation.rcu_nocbs says what is missing
    intended = asked_by(ctx, "rcu_nocbs") is not None
    expected = {"threads_at_least": format_list(wanted)}
    threads = _threads(ctx)
    kernel = [thread.command for thread in threads.found if thread.kernel]
    if not kernel:
        reason, path = threads.hidden or ("not_available", PROC)
        asked_live = intended and ctx.live
        yield skipped(identity, "running", reason, expected=expected, source=path, intended=asked_live)
        return
    names = [name.partition("/")[2] for name in kernel if name.startswith(("rcuop/", "rcuos/"))]
    live = frozenset(int(name) for name in names if name.isdigit())
    yield judge(
        identity,
        "running",
        expected,
        {"threads": format_list(live)},
        good=wanted <= live,
        reason="kernel_refused",
        source=PROC,
        remedy=f"The kernel did not take {ISOLATED} as written: without CONFIG_RCU_NOCB_CPU it ignores it.",
        intended=intended,
    )


def check_workqueues(ctx: Context) -> Iterator[Result]:
    """Unbound kernel work: isolcpus=domain takes the isolated CPUs out of this mask, others may put them back."""
    identity = "cpu_isolation.workqueues"
    cpus = _isolated(ctx, identity)
    live = ctx.parsed(_WORKQUEUES, parse_mask)
    if isinstance(cpus, Result):
        yield cpus
    elif live is None:
        yield skipped(identity, "running", "not_available", source=_WORKQUEUES, intended=False)
    else:
        yield judge(
            identity,
            "running",
            None,
            format_list(live),
            good=not live & cpus,
            reason="kernel_work_on_isolated_cpu",
            source=_WORKQUEUES,
            remedy=f"Somebody widened it: write the mask of CPUs {format_list(live - cpus)}, which {ISOLATED} leaves.",
            intended=False,
        )


CHECKS = (
    Check("cpu_isolation.irqs", ("running",), check_irqs, asked),
    Check("cpu_isolation.threads", ("running",), check_threads, asked),
    Check(
        "boot.accepted.rcu_nocbs",
        ("running",),
        check_rcu_threads,
        lambda ctx: asked_by(ctx, "rcu_nocbs") is not None,
    ),
    Check("cpu_isolation.workqueues", ("running",), check_workqueues, lambda ctx: False),
)
