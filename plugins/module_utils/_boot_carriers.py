# SPDX-License-Identifier: Apache-2.0
"""Change of the command line where it is stored entry by entry: what each place holds and is to hold."""

from __future__ import annotations

from dataclasses import dataclass

from ._boot_effect import token_key, with_ours
from ._boot_plan import Request, check_line, mark_ours, settle
from ._boot_types import BootError, LineToken
from ._kernel_args import KernelFacts


@dataclass(frozen=True)
class Carrier:
    """One place that stores tokens. tail: tokens that follow them on every line made from it.

    drops_keys: it is written by a tool that changes all such places at once, and that removes every token
    with one of our keys first; a foreign one with such a key is in the way even where it changes nothing.
    """

    path: str
    name: str
    tokens: tuple[LineToken, ...]
    tail: tuple[LineToken, ...] = ()
    drops_keys: bool = False

    def texts(self) -> list[str]:
        """The texts of its tokens."""
        return [token.text for token in self.tokens]


def place(
    carriers: list[Carrier], request: Request, facts: KernelFacts
) -> tuple[list[list[str]], list[LineToken]]:
    """The token texts each of CARRIERS is to hold, and the foreign tokens that are replaced.

    Ours go to the end of each, before a bare `--`. Where foreign tokens already do all of it nothing is added.
    Raises BootError for a contradiction.
    """
    foreign = [
        [token for token in mark_ours(list(carrier.tokens), request.owned) if not token.ours]
        for carrier in carriers
    ]
    settled = [settle([*rest, *carrier.tail], request, facts) for rest, carrier in zip(foreign, carriers)]
    together = any(ours for (ours, _there), carrier in zip(settled, carriers) if carrier.drops_keys)
    result: list[list[str]] = []
    gone: list[LineToken] = []
    for rest, carrier, (ours, replaced) in zip(foreign, carriers, settled):
        if request.tokens and not ours and not (carrier.drops_keys and together):
            result.append(_texts(rest))
            continue
        _refuse_tail(replaced, carrier)
        kept = [token for token in rest if all(token is not other for other in replaced)]
        if carrier.drops_keys:
            kept = _without_keys(kept, request)
        gone += [t for t in rest if all(t is not k for k in kept) and t.text not in request.tokens]
        texts = with_ours(_texts(kept), list(request.tokens))
        line = " ".join([*texts, *_texts(list(carrier.tail))])
        check_line(line, list(request.tokens), request, facts, file=carrier.path)
        result.append(texts)
    return result, gone


def one_line(path: str, old: str, texts: list[str]) -> str:
    """TEXTS as the new text of PATH, a file of arguments such as /etc/kernel/cmdline that holds OLD.

    All of its lines become one. Behind a `#` that would be a comment to those who read it with comments, root=
    and all, and arguments to the others: BootError `cannot_edit`.
    """
    for number, line in enumerate(old.split("\n"), 1):
        if line.lstrip().startswith("#"):
            text = "it holds a comment, which some tools take for arguments; take it out, then it can be changed"
            raise BootError("cannot_edit", text, path, number)
    return " ".join(texts) + ("\n" if old.endswith("\n") else "")


def _without_keys(kept: list[LineToken], request: Request) -> list[LineToken]:
    keys = {token_key(text) for text in request.tokens}
    rest = []
    for token in kept:
        if token_key(token.text) not in keys:
            rest.append(token)
        elif token.text not in request.tokens and not request.replace:
            raise BootError(
                "foreign_token",
                f"{token.text} belongs to somebody else, and grubby drops every argument with that key "
                "before it adds ours; remove it there, or set firsttouch_on_conflict to replace",
                token.source.file if token.source else None,
                token.source.line if token.source else None,
            )
    return rest


def _refuse_tail(replaced: list[LineToken], carrier: Carrier) -> None:
    for token in replaced:
        if any(token is other for other in carrier.tail):
            raise BootError(
                "cannot_replace",
                f"{token.text} is set by another tool (tuned writes tuned_params); take it out there",
                token.source.file if token.source else None,
                token.source.line if token.source else None,
            )


def _texts(tokens: list[LineToken]) -> list[str]:
    return [token.text for token in tokens]
