# SPDX-License-Identifier: Apache-2.0
"""What the kernel makes of the arguments that place CPUs: isolcpus, nohz_full, rcu_nocbs, irqaffinity, and
those that limit the CPUs themselves: nr_cpus, possible_cpus, maxcpus, nosmp.

Sources: kernel/sched/isolation.c housekeeping_setup and housekeeping_isolcpus_setup,
kernel/time/tick-sched.c tick_nohz_init, kernel/rcu/tree_nocb.h rcu_nocb_setup and rcu_init_nohz,
kernel/irq/irqdesc.c irq_affinity_setup, kernel/smp.c, arch/x86/kernel/smpboot.c and cpu/topology.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ._cmdline import Token, normal_key, split
from ._cpulist import CpuListError, format_list, parse
from ._kernel_facts import KernelFacts
from ._kernel_numbers import Warn, get_option

KEYS = ("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity")
LIMIT_KEYS = ("nr_cpus", "possible_cpus", "maxcpus", "nosmp")
_DOMAIN, _MANAGED_IRQ, _NOHZ = "domain", "managed_irq", "nohz"


@dataclass
class Isolation:
    """The resulting CPU sets, and the flags of isolcpus= in the order written."""

    domain: frozenset[int] = frozenset()
    managed_irq: frozenset[int] = frozenset()
    nohz_full: frozenset[int] = frozenset()
    rcu_nocbs: frozenset[int] = frozenset()
    irqaffinity: frozenset[int] = frozenset()
    flags: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """The sets as canonical list strings."""
        names = ("domain", "managed_irq", "nohz_full", "rcu_nocbs", "irqaffinity")
        return {**{name: format_list(getattr(self, name)) for name in names}, "flags": list(self.flags)}


@dataclass(frozen=True)
class Limits:
    """What a line says about the CPUs themselves; None: nothing. nr_cpus is the lowest, nosmp is maxcpus=0."""

    nr_cpus: int | None = None
    possible: int | None = None
    max_cpus: int | None = None

    @classmethod
    def of(cls, tokens: Sequence[Token], facts: KernelFacts) -> Limits:
        """nr_cpus= only lowers nr_cpu_ids; possible_cpus= (x86) does from Linux 6.9 and sets it before; maxcpus=
        leaves the later CPUs possible, only not brought up, but 0 of them is a machine with one CPU on x86."""
        nr_cpus: int | None = None
        possible: int | None = None
        max_cpus: int | None = None
        x86 = facts.arch in ("x86_64", "i686")
        for token in tokens:
            key, value = normal_key(token.key), get_option(token.value or "")
            if token.after_dashes:
                break
            if key == "nosmp":
                max_cpus = 0
            elif value is None:
                continue
            elif key == "nr_cpus" and value > 0:
                nr_cpus = value if nr_cpus is None else min(nr_cpus, value)
            elif key == "maxcpus":
                max_cpus = value
            elif key == "possible_cpus" and x86:
                possible = value if value > 0 else None
        if possible is not None and facts.version >= (6, 9):
            nr_cpus, possible = min(nr_cpus or possible, possible), None
        if max_cpus == 0 and facts.arch == "x86_64":
            nr_cpus = 1
        return cls(nr_cpus, possible, max_cpus)


def machine_facts(tokens: Sequence[Token], facts: KernelFacts) -> tuple[KernelFacts, Warn | None]:
    """FACTS with the CPUs that a boot with TOKENS starts from, before what TOKENS themselves take away.

    The running kernel shows what its own limits left. Where these are lifted, the number of CPUs is that of the
    machine if anything shows it, else not known: a warning, and nothing is concluded from a number.
    """
    live, asked = Limits.of(split(facts.running), facts), Limits.of(tokens, facts)
    online = facts.online
    if live.max_cpus != asked.max_cpus and facts.present:
        up = sorted(facts.present, key=lambda cpu: (cpu != facts.boot_cpu, cpu))
        online = frozenset(up if asked.max_cpus is None else up[: max(asked.max_cpus, 1)])
    settled = replace(facts, online=online, running="", machine_cpus=None)
    hides = facts.nr_cpu_ids is not None and facts.nr_cpu_ids in (live.nr_cpus, live.possible)
    count = facts.nr_cpu_ids or 0
    if not hides or asked.possible is not None or (asked.nr_cpus is not None and asked.nr_cpus <= count):
        return settled, None
    if live.possible == asked.possible and live.nr_cpus == asked.nr_cpus:
        return settled, None
    if facts.machine_cpus is not None:
        every = frozenset(range(facts.machine_cpus))
        known = replace(settled, possible=every, present=frozenset(), nr_cpu_ids=facts.machine_cpus)
        return known, None
    token = next(t for t in split(facts.running) if normal_key(t.key) in LIMIT_KEYS)
    text = (
        f"the running kernel was started with {token.text} and shows {count} CPUs; how many a boot without it finds "
        "is not known"
    )
    unknown = replace(settled, possible=frozenset(), present=frozenset(), nr_cpu_ids=None)
    return unknown, Warn(token.text, "cpu_count_unknown", text)


def limit_cpus(tokens: Sequence[Token], facts: KernelFacts) -> tuple[KernelFacts, int | None, list[Warn]]:
    """FACTS as they are after the arguments that limit CPUs, maxcpus (None: no limit), and what is not known."""
    facts, doubt = machine_facts(tokens, facts)
    limits = Limits.of(tokens, facts)
    if limits.possible is not None and facts.nr_cpu_ids is not None:
        facts = _with_cpus(facts, frozenset(range(limits.possible)))
    if limits.nr_cpus is not None and facts.nr_cpu_ids is not None and limits.nr_cpus < facts.nr_cpu_ids:
        left = frozenset(cpu for cpu in facts.possible if cpu < limits.nr_cpus)
        facts = _with_cpus(facts, left, limits.nr_cpus)
    return facts, limits.max_cpus, [doubt] if doubt else []


def _with_cpus(facts: KernelFacts, possible: frozenset[int], nr_cpu_ids: int | None = None) -> KernelFacts:
    count = nr_cpu_ids if nr_cpu_ids is not None else max(possible) + 1
    return replace(
        facts,
        possible=possible,
        present=facts.present & possible,
        online=facts.online & possible,
        nr_cpu_ids=count,
    )


class IsolationParser:
    """The state of kernel/sched/isolation.c while it reads one command line."""

    def __init__(self, facts: KernelFacts, max_cpus: int | None) -> None:
        self.facts = facts
        self.max_cpus = max_cpus
        self.result = Isolation(irqaffinity=facts.possible)
        self.warnings: list[Warn] = []
        # The isolated CPUs of each type that was set; before Linux 5.18 there is one mask for all types.
        self._types: dict[str, frozenset[int]] = {}
        self._rcu: frozenset[int] = frozenset()

    def warn(self, token: Token, reason: str, text: str, dropped: bool = False) -> None:
        self.warnings.append(Warn(token.text, reason, text, dropped))

    def feed(self, tokens: Sequence[Token]) -> Isolation:
        """Take the arguments in order and return the sets that result."""
        for token in tokens:
            key = normal_key(token.key)
            if key not in KEYS:
                continue
            if key == "rcu_nocbs":
                self._rcu_nocbs(token)
            elif token.value is None:
                self.warn(token, "missing_value", f"{token.text} has no value, ignored", dropped=True)
            elif key == "irqaffinity":
                self._irqaffinity(token, token.value)
            elif not self.facts.isolation_supported:
                text = f"{token.text}: this kernel is built without CONFIG_CPU_ISOLATION, ignored"
                self.warn(token, "isolation_unsupported", text, dropped=True)
            elif key == "nohz_full":
                self._housekeeping(token, token.value, (_NOHZ,))
            else:
                self._isolcpus(token, token.value)
        return self._settle()

    def _cpus(self, text: str) -> frozenset[int]:
        """cpulist_parse. Raises CpuListError."""
        return parse(text, self.facts.list_bits, aliases=self.facts.list_words)

    def _isolcpus(self, token: Token, value: str) -> None:
        """housekeeping_isolcpus_setup: flags first, each closed by a comma, then the list."""
        flags: list[str] = []
        rest = value
        known = [_NOHZ, _DOMAIN] + ([_MANAGED_IRQ] if self.facts.version >= (5, 6) else [])
        while rest[:1].isascii() and rest[:1].isalpha():
            name, comma, behind = rest.partition(",")
            if comma and name in known:
                flags.append(name)
            elif self.facts.version < (5, 8) or not all(
                c == "_" or (c.isascii() and c.isalpha()) for c in name
            ):
                text = f"{token.text}: {name!r} is not a flag, ignored as a whole"
                self.warn(token, "invalid_flag", text, dropped=True)
                return
            elif not comma:
                # The kernel reads on behind the end of the value, into the next argument, and gives up there.
                text = f"{token.text}: the CPU list is missing behind {name!r}, nothing is isolated"
                self.warn(token, "missing_cpu_list", text, dropped=True)
                self._note_flags([*flags, name] if name in known else flags)
                return
            else:
                self.warn(token, "unknown_flag", f"{token.text}: unknown flag {name!r} is skipped")
            rest = behind
        flags = flags or [_DOMAIN]
        self._note_flags(flags)
        if _DOMAIN not in flags:
            text = f"{token.text}: a flag without `domain` leaves the CPUs in the scheduler's domains"
            self.warn(token, "domain_not_isolated", text)
        self._housekeeping(token, rest, tuple(dict.fromkeys(flags)))

    def _note_flags(self, flags: list[str]) -> None:
        self.result.flags.extend(flag for flag in flags if flag not in self.result.flags)

    def _housekeeping(self, token: Token, text: str, types: tuple[str, ...]) -> None:
        """housekeeping_setup: all of TYPES get the mask, or the argument is dropped."""
        facts = self.facts
        if _NOHZ in types and _NOHZ not in self._types and not facts.nohz_full_supported:
            text = f"{token.text}: this kernel is built without CONFIG_NO_HZ_FULL, ignored"
            self.warn(token, "nohz_full_unsupported", text, dropped=True)
            return
        listed = self._list(token, text)
        if not listed:
            return
        isolated = listed & facts.possible if facts.possible else listed
        if not self._agrees(token, isolated, types):
            return
        if _NOHZ in types and _NOHZ not in self._types:
            self.result.nohz_full = listed
        for name in types:
            self._types.setdefault(name, isolated)

    def _list(self, token: Token, text: str) -> frozenset[int]:
        """The CPUs of a housekeeping list that the kernel takes; empty: it drops the argument.

        An empty list is dropped below Linux 5.18 (cpumask_last) and again from 6.10, which the 6.1 and 6.6
        stable kernels have too, as they have the rule about maxcpus=.
        """
        try:
            listed = self._cpus(text)
            if self.facts.version < (5, 18):
                parse(format_list(listed), self.facts.nr_cpu_ids)
        except CpuListError as exc:
            self.warn(token, exc.reason, f"{exc}; the kernel drops {token.text} as a whole", dropped=True)
            return frozenset()
        if not listed:
            self.warn(token, "empty_cpu_list", f"{token.text} names no CPU, ignored", dropped=True)
        return self._keep_one(token, listed)

    def _keep_one(self, token: Token, listed: frozenset[int]) -> frozenset[int]:
        """At least one present CPU keeps the house: else the boot CPU is taken out of the list."""
        facts = self.facts
        if not facts.present:
            return listed
        left = facts.present - listed
        enough = bool(left)
        if enough and self.max_cpus is not None and facts.version >= (6, 1):
            enough = min(left) < self.max_cpus
        if enough:
            return listed
        text = (
            f"{token.text} leaves no housekeeping CPU: the kernel keeps boot CPU {facts.boot_cpu} out of it"
        )
        self.warn(token, "no_housekeeping_cpu", text)
        return listed - {facts.boot_cpu}

    def _agrees(self, token: Token, isolated: frozenset[int], types: tuple[str, ...]) -> bool:
        """The first mask wins: a type that is set already must be given the same CPUs again."""
        if self.facts.version >= (5, 18):
            clashes = [name for name in types if self._types.get(name, isolated) != isolated]
        else:
            clashes = [name for name, cpus in self._types.items() if cpus != isolated]
        if not clashes:
            return True
        first = format_list(self._types[clashes[0]]) or "empty"
        text = f"{token.text} is ignored: {clashes[0]} is already {first} (nohz_full= must match isolcpus=)"
        self.warn(token, "mask_mismatch", text, dropped=True)
        return False

    def _rcu_nocbs(self, token: Token) -> None:
        """rcu_nocb_setup: the last argument wins; a list it cannot read means all CPUs."""
        if self.facts.config is not None and self.facts.config.get("CONFIG_RCU_NOCB_CPU") != "y":
            text = f"{token.text}: this kernel is built without CONFIG_RCU_NOCB_CPU, ignored"
            self.warn(token, "rcu_nocbs_unsupported", text, dropped=True)
            return
        if token.value is None:
            if self.facts.version < (5, 17):
                self.warn(token, "missing_value", f"{token.text} has no value, ignored", dropped=True)
            return
        if token.value.lower() == "all" and self.facts.version < (5, 14):
            self._rcu = self.facts.possible
            return
        try:
            self._rcu = self._cpus(token.value)
        except CpuListError as exc:
            self._rcu = self.facts.possible
            self.warn(token, exc.reason, f"{exc}; for {token.text} the kernel takes all CPUs")

    def _irqaffinity(self, token: Token, value: str) -> None:
        """irq_affinity_setup: what could be read in front of an error stays; the boot CPU is always added."""
        try:
            cpus = self._cpus(value)
        except CpuListError as exc:
            cpus = exc.before
            kept = format_list(cpus) or "no CPU"
            self.warn(
                token, exc.reason, f"{exc}; of {token.text} the kernel keeps what stands before it: {kept}"
            )
        if self.facts.boot_cpu not in cpus:
            text = f"{token.text}: the kernel adds boot CPU {self.facts.boot_cpu}"
            self.warn(token, "boot_cpu_added", text)
        self.result.irqaffinity = cpus | {self.facts.boot_cpu}

    def _settle(self) -> Isolation:
        """tick_nohz_init takes the boot CPU out where a suspend may need it; rcu_init_nohz adds nohz_full."""
        facts, result = self.facts, self.result
        result.domain = self._types.get(_DOMAIN, frozenset())
        result.managed_irq = self._types.get(_MANAGED_IRQ, frozenset())
        if facts.boot_cpu in result.nohz_full and not facts.arch.startswith("ppc64"):
            result.nohz_full -= {facts.boot_cpu}
            text = f"nohz_full: the kernel clears boot CPU {facts.boot_cpu} for timekeeping"
            self.warnings.append(Warn("nohz_full", "boot_cpu_keeps_tick", text))
        nocbs = self._rcu | result.nohz_full
        result.rcu_nocbs = nocbs & facts.possible if facts.possible else nocbs
        return result
