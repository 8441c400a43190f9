# SPDX-License-Identifier: Apache-2.0
"""Change of the command line where it is stored entry by entry: what each place holds and is to hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ._boot_effect import token_key, with_ours
from ._boot_plan import Request, check_line, mark_ours, settle
from ._boot_replaced import Place, put_back, read_replaced
from ._boot_type1 import Type1, parse, with_options
from ._boot_types import BootError, LineToken
from ._cmdline import split
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


def put_back_entries(
    root: str,
    raws: list[Type1],
    now: Place,
    owned: tuple[str, ...],
    expand: Callable[[list[str]], list[str]] = list,
) -> dict[str, str]:
    """The texts to put back, by place (see _boot_replaced), those of the entries RAWS among them.

    An entry that somebody edited besides the arguments gets its arguments back, and so does one that was made
    since of those that were left: it would hold the others too. EXPAND puts the values of variables in, as the
    boot loader's own tool may have done.
    """
    back, rows = put_back(root, now), read_replaced(root)
    for raw in raws:
        row = rows.get(raw.path)
        if raw.path in back or (row and row.before == raw.text):
            continue
        here = expand(_foreign(raw.path, raw.text, owned))
        found = {
            tuple(_foreign(path, old.before, owned))
            for path, old in ({raw.path: row} if row else rows).items()
            if expand(_foreign(path, old.after, owned)) == here
        }
        if len(found) == 1:
            back[raw.path] = with_options(raw, list(found.pop()))
    return back


def _foreign(path: str, text: str, owned: tuple[str, ...]) -> list[str]:
    """The arguments in TEXT, that of an entry or a list of arguments, that are not OWNED."""
    tokens = parse(path, text).tokens if path.endswith(".conf") else split(text)
    return [t.text for t in mark_ours([LineToken(token.text) for token in tokens], owned) if not t.ours]


def one_line(path: str, old: str, texts: list[str]) -> str:
    """TEXTS as the new text of PATH, a file of arguments such as /etc/kernel/cmdline that holds OLD.

    All of its lines become one; a text that holds just them stays as it is. Behind a `#` that would be a comment to
    those who read it with comments, root= and all, and arguments to the others: BootError `cannot_edit`.
    """
    if [token.text for token in split(old)] == texts:
        return old
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
