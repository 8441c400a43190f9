# SPDX-License-Identifier: Apache-2.0
"""Expand the words of a GRUB script over sets of possible values (None: any value)."""

from __future__ import annotations

import itertools
from typing import Optional

from ._boot_script import Branch, Command, Loop, Piece, Statement, Word

Possible = Optional[frozenset[str]]
Variables = dict[str, Possible]

EMPTY: Possible = frozenset([""])
_MAX_ALTERNATIVES = 16


def value_of(word: Word, variables: Variables) -> Possible:
    """The values WORD can have, without splitting it into fields."""
    texts = {""}
    for piece in word:
        values = variables.get(piece.text, EMPTY) if piece.variable else frozenset([piece.text])
        if values is None or len(values) * len(texts) > _MAX_ALTERNATIVES:
            return None
        texts = {text + value for text in texts for value in values}
    return frozenset(texts)


def argument_lists(words: list[Word], variables: Variables) -> list[list[str | None]]:
    """Every argument list WORDS can expand to; None in it stands for an unknown argument."""
    names = sorted({piece.text for word in words for piece in word if piece.variable})
    choices: list[list[Possible]] = []
    count = 1
    for name in names:
        values = variables.get(name, EMPTY)
        choices.append([None] if values is None else [frozenset([value]) for value in sorted(values)])
        count *= len(choices[-1])
    if count > _MAX_ALTERNATIVES:
        return [[None]]
    found: list[list[str | None]] = []
    for chosen in itertools.product(*choices):
        values_now = dict(zip(names, chosen))
        fields: list[str | None] = []
        for word in words:
            if any(piece.variable and values_now[piece.text] is None for piece in word):
                fields.append(None)
            else:
                fields.extend(_fields(word, values_now))
        found.append(fields)
    return found


def kept_fields(word: Word, variables: Variables, unresolved: Variables) -> list[str]:
    """The fields of WORD; a variable without one certain value stays as `$name` and goes to UNRESOLVED."""
    pieces = []
    for piece in word:
        values = variables.get(piece.text, EMPTY) if piece.variable else EMPTY
        if values is None or len(values) != 1:
            unresolved[piece.text] = values
            pieces.append(Piece(f"${piece.text}", False, True))
        else:
            pieces.append(piece)
    return _fields(tuple(pieces), variables)


def assignment(word: Word) -> tuple[str, Word] | None:
    """The name and the value of WORD when it reads `name=value`."""
    name = ""
    for index, piece in enumerate(word):
        if piece.variable:
            return None
        before, equals, after = piece.text.partition("=")
        name += before
        if equals:
            rest = (Piece(after, False, piece.quoted), *word[index + 1 :])
            return (name, rest) if name.isidentifier() else None
    return None


def assigned_names(body: list[Statement]) -> set[str]:
    """The variables that BODY may set."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, Command):
            names |= {pair[0] for pair in map(assignment, node.words) if pair}
        elif isinstance(node, Branch):
            for _test, inner in node.branches:
                names |= assigned_names(inner)
            names |= assigned_names(node.otherwise)
        elif isinstance(node, Loop):
            names |= assigned_names(node.body)
    return names


def _fields(word: Word, variables: Variables) -> list[str]:
    """The fields of WORD when every variable in it has one value: unquoted ones are split at blanks."""
    fields: list[str] = []
    current: str | None = None
    for piece in word:
        text = next(iter(variables.get(piece.text, EMPTY) or [""])) if piece.variable else piece.text
        if piece.quoted or not piece.variable:
            current = (current or "") + text
            continue
        for index, part in enumerate(text.split(" ")):
            if index and current is not None:
                fields.append(current)
                current = None
            if part:
                current = (current or "") + part
    if current is not None:
        fields.append(current)
    return fields
