# SPDX-License-Identifier: Apache-2.0
"""What our tokens do on a complete command line: whether they hold there, and who contradicts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._boot_types import BootError, LineToken
from ._cmdline import Token, make, normal_key, split
from ._kernel_args import MANAGED_KEYS, KernelFacts, Prediction, predict
from ._kernel_hugetlb import KEYS as HUGETLB_KEYS
from ._kernel_isolation import machine_facts
from ._kernel_numbers import memparse

# The fields of the predicted isolation that an argument is about.
_ISOLATION = {
    "isolcpus": ("domain", "managed_irq", "flags"),
    "nohz_full": ("nohz_full",),
    "rcu_nocbs": ("rcu_nocbs",),
    "irqaffinity": ("irqaffinity",),
}
_MEMORY = {"mem": "mem_limit_bytes", "crashkernel": "crashkernel_bytes"}
# Put on the line by the boot loader itself.
_LOADER_KEYS = {"BOOT_IMAGE", "initrd"}
_SIZE_KEYS = ("hugepagesz", "default_hugepagesz")
_THP = "transparent_hugepage"
_THP_MODES = ("always", "madvise", "never")
# Arguments whose effect a running kernel can be given too (here: the module thp): no reboot is due for them.
LIVE_KEYS = frozenset((_THP,))


@dataclass(frozen=True)
class Concern:
    """What a list of tokens is about: their keys and, for hugetlb arguments, their page sizes in kB."""

    keys: frozenset[str]
    sizes_kb: frozenset[int] | None
    default_size: bool

    @classmethod
    def of(cls, tokens: Iterable[str], facts: KernelFacts, keys: Iterable[str] = ()) -> Concern:
        """The concern of TOKENS, and of KEYS where nothing is known of their values."""
        texts = list(tokens)
        parsed = split(" ".join(texts))
        own = {normal_key(token.key) for token in parsed}
        wanted = own | {normal_key(key) for key in keys}
        sizes: set[int] | None = set() if own & set(HUGETLB_KEYS) else None
        for token in parsed:
            if sizes is not None and _page_size(token):
                sizes.add(_page_size(token))
        if sizes is not None and not sizes:
            sizes.add(predict(" ".join(texts), facts).default_kb)
        return cls(
            frozenset(wanted), None if sizes is None else frozenset(sizes), "default_hugepagesz" in wanted
        )

    def effect(self, prediction: Prediction, tokens: Iterable[Token]) -> dict[str, Any]:
        """The part of PREDICTION that is about this concern; keys it does not know count by their values."""
        document = prediction.as_dict()
        result: dict[str, Any] = {}
        if self.keys & set(HUGETLB_KEYS):
            pools = {size: pool for size, pool in document["pools"].items() if pool["total"]}
            if self.sizes_kb is not None:
                pools = {size: pool for size, pool in pools.items() if int(size[:-2]) in self.sizes_kb}
            result["pools"] = pools
        if self.default_size:
            result["default_kb"] = document["default_kb"]
        for key, fields in _ISOLATION.items():
            if key in self.keys:
                result.update({name: document["isolation"][name] for name in fields})
        for key, name in _MEMORY.items():
            if key in self.keys:
                result[name] = document["memory"][name]
        if _THP in self.keys:
            result[_THP] = _thp_mode(tokens)
        for key in sorted(self.keys - set(MANAGED_KEYS) - {_THP}):
            result[key] = [t.value for t in tokens if normal_key(t.key) == key and not t.after_dashes]
        return result


def _thp_mode(tokens: Iterable[Token]) -> str | None:
    """The mode of the last argument that names one; others are ignored (mm/huge_memory.c)."""
    values = [t.value for t in tokens if normal_key(t.key) == _THP and not t.after_dashes]
    return next((value for value in reversed(values) if value in _THP_MODES), None)


def effect_of(line: str, concern: Concern, facts: KernelFacts) -> dict[str, Any]:
    """What LINE does about CONCERN on a kernel with FACTS."""
    return concern.effect(predict(line, facts), split(line))


def shortfall(line: str, wanted: list[str], facts: KernelFacts) -> tuple[str, str] | None:
    """Why LINE does not do what WANTED asks, as (reason, text); None when it does.

    The tokens must be there as the kernel reads them (quotes are no part of them, `-` in a key is `_`, 2048K is 2M),
    the hugetlb ones in their order, and the kernel must make of the whole line what it makes of WANTED alone: the first
    count of a pool wins, a second isolcpus= can be dropped.
    """
    tokens = split(line)
    read = [_meaning(token) for token in tokens if not token.after_dashes]
    for group in _groups(wanted):
        meant = [_meaning(split(text)[0]) for text in group]
        if _in_order(read, meant):
            continue
        everything = [_meaning(token) for token in tokens]
        if _in_order(everything, meant):
            return (
                "after_double_dash",
                f"{' '.join(group)} stands behind `--`, so the kernel does not read it",
            )
        missing = [text for text, what in zip(group, meant) if what not in read]
        if missing:
            return "missing_tokens", f"not on the command line: {' '.join(missing)}"
        return "wrong_order", f"not in the order {' '.join(group)}"
    facts = machine_facts(tokens, facts)[0]
    concern = Concern.of(wanted, facts)
    asked, done = effect_of(" ".join(wanted), concern, facts), effect_of(line, concern, facts)
    differing = sorted(name for name in asked if asked[name] != done[name])
    if differing:
        name = differing[0]
        return "different_effect", f"{name}: asked {asked[name]!r}, the whole line gives {done[name]!r}"
    return None


def contradicting(foreign: list[LineToken], wanted: list[str], facts: KernelFacts) -> list[LineToken]:
    """The FOREIGN tokens on account of which WANTED, appended to them, would not do what it asks."""
    line = " ".join(with_ours([token.text for token in foreign], wanted))
    facts = machine_facts(split(line), facts)[0]
    concern = Concern.of(wanted, facts)
    keys = {normal_key(token.key) for token in split(" ".join(wanted))}
    same = [token for token in foreign if token_key(token.text) in keys]
    meant = [_meaning(token) for token in split(" ".join(wanted))]
    plain = [
        token
        for token in same
        if token_key(token.text) not in MANAGED_KEYS and _meaning(split(token.text)[0]) not in meant
    ]
    if plain:
        return plain
    own = effect_of(" ".join(wanted), concern, facts)
    if own == effect_of(line, concern, facts) or not foreign:
        return []
    # the fewest that must go: those whose removal alone settles it, else all with our keys, else all limits
    for token in same:
        rest = [other.text for other in foreign if other is not token]
        if effect_of(" ".join(with_ours(rest, wanted)), concern, facts) == own:
            return [token]
    return same or [token for token in foreign if token_key(token.text) in MANAGED_KEYS]


def with_ours(foreign: list[str], ours: list[str]) -> list[str]:
    """FOREIGN with OURS added at the end, before a bare `--`."""
    at = next((index for index, text in enumerate(foreign) if text == "--"), len(foreign))
    return foreign[:at] + ours + foreign[at:]


def ignored_by_kernel(line: str, wanted: list[str], facts: KernelFacts) -> str | None:
    """Why the kernel would drop a token of WANTED from LINE; None when it takes them all."""
    prediction = predict(line, facts)
    dropped = set(prediction.ignored()) & set(wanted)
    return next((warning.text for warning in prediction.warnings if warning.token in dropped), None)


def split_line(line: str) -> list[str]:
    """The texts of the tokens of LINE without those the boot loader adds by itself."""
    return [token.text for token in split(line) if token.key not in _LOADER_KEYS]


def check_tokens(tokens: list[str], keys: list[str]) -> None:
    """Refuse tokens that are not exactly one plain kernel argument each. Raises BootError `invalid_token`.

    Only characters that neither a shell nor GRUB nor sed in grubby gives a meaning are accepted.
    """
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:=+/@%-")
    for token in [*tokens, *keys]:
        bad = sorted(set(str(token)) - allowed)
        if bad or not token or str(token).lower() in ("none", "null", "undefined") or token == "--":
            why = f"it holds {bad[0]!r}" if bad else "it is no kernel argument"
            raise BootError("invalid_token", f"the token {token!r} is refused: {why}", token=token)
        if make(token).value in ("None", "null", "undefined"):
            raise BootError(
                "invalid_token", f"the token {token!r} is refused: its value is undefined", token=token
            )
    given = {normal_key(key) for key in keys}
    foreign = [token for token in tokens if keys and token_key(token) not in given]
    if foreign:
        raise BootError("invalid_token", f"the key of {foreign[0]!r} is not among the keys {sorted(given)}")


def needs_boot(tokens: Iterable[str]) -> list[str]:
    """Those of TOKENS, or of keys, that only a boot brings into effect."""
    return [token for token in tokens if token_key(token) not in LIVE_KEYS]


def _groups(wanted: list[str]) -> list[list[str]]:
    """WANTED in groups within which the order means something."""
    groups: dict[str, list[str]] = {}
    for token in (text for text in wanted if split(text)):
        key = token_key(token)
        groups.setdefault("hugetlb" if key in HUGETLB_KEYS else key, []).append(token)
    return list(groups.values())


def _meaning(token: Token) -> tuple[str, str | int | None]:
    """Key and value of TOKEN, as the kernel compares and takes them."""
    return normal_key(token.key), _page_size(token) or token.value


def _page_size(token: Token) -> int:
    """The kB of the page size that TOKEN names in whatever way, 2048K or 2M; 0 where it names none."""
    size = memparse(token.value or "")[0] if normal_key(token.key) in _SIZE_KEYS else 0
    return 0 if size % 1024 else size // 1024


def beyond(texts: Iterable[str], others: Iterable[str]) -> list[str]:
    """Those of the tokens TEXTS that OTHERS have not, or not as often: the same text, or the same page size."""
    rows, left = list(texts), Counter(others)
    there = []
    for text in rows:
        there.append(left[text] > 0)
        left[text] -= there[-1]
    # Only then by what they mean: else the first of them would pass for the one that is written as OTHERS have it.
    meant = Counter(_comparable(text) for text in left.elements())
    found = []
    for text, same in zip(rows, there):
        name = _comparable(text)
        if not same and not meant[name]:
            found.append(text)
        elif not same:
            meant[name] -= 1
    return found


def _comparable(text: str) -> str | tuple[str, int]:
    # Only these are known to be the same in two forms: what is behind `--`, or a module's, may differ by a quote.
    token = next(iter(split(text)), None)
    size = _page_size(token) if token else 0
    return (normal_key(token.key), size) if token and size else text


def _in_order(tokens: list[tuple[str, str | int | None]], wanted: list[tuple[str, str | int | None]]) -> bool:
    rest = iter(tokens)
    return all(token in rest for token in wanted)


def token_key(text: str) -> str:
    """The key of the one token TEXT, as the kernel compares keys."""
    tokens = split(text)
    return normal_key(tokens[0].key) if tokens else ""
