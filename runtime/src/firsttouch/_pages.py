# SPDX-License-Identifier: Apache-2.0
"""Which kinds of pages `pages="auto"` may take: huge pages of a pool only as far as nobody counts on them.

A page of hugetlb that the transport takes is one that a model cannot have. On a host with a plan its pools are sized
for the models, so that `auto` leaves them alone; elsewhere it takes at most half of what is free and not promised.
Latency is no reason to take more: a round trip is as fast on pages of 4 KiB.

Whoever maps the memory can give its pages back (fallocate(2), FALLOC_FL_PUNCH_HOLE; no seal forbids that where clients
write). A small page comes again when it is touched; one of hugetlb does not when somebody has taken it, and the touch
is SIGBUS. So `auto` takes none where clients may be of users who could not end the server anyway.
"""

from __future__ import annotations

from typing import Final

from firsttouch import _pool, plan
from firsttouch.errors import PlanError, PoolTooSmallError

KINDS: Final = ("hugetlb", "thp", "4k")
_HUGE: Final = 2 << 20
_STRANGERS: Final = "a client of another user could give pages back, whose lack ends the server"
_ASK: Final = "ask for them with pages=hugetlb"


def kinds(
    pages: str, need_bytes: int, node: int | None, *, strangers: bool = False
) -> tuple[tuple[str, ...], list[str]]:
    """What to try for PAGES, best first, and remarks, as why not all; NEED_BYTES on NODE.

    STRANGERS: whether users other than the server's own and root may attach.
    """
    if pages != "auto":
        return (pages,), [f"hugetlb: {_STRANGERS}"] if pages == "hugetlb" and strangers else []
    why = f"{_STRANGERS}; {_ASK}" if strangers else _kept_for_others(-(-need_bytes // _HUGE), node)
    return (KINDS[1:], [f"hugetlb: {why}"]) if why else (KINDS, [])


def _kept_for_others(need: int, node: int | None) -> str:
    """Why NEED huge pages are not taken unasked; empty when they may be."""
    try:
        pool = _pool.read_pool(_HUGE)
    except PoolTooSmallError as error:
        return error.message
    try:
        found = plan.load_plan()
    except PlanError as error:
        return f"{error.message}, so that nobody knows whose the pool is"
    pools = ((found.document.get("sections") or {}).get("hugepages") or {}).get("pools")
    if pools:
        return f"the pools of {found.source} are for models; {_ASK}"
    free = pool.available if node is None else min(pool.available, pool.nodes.get(node, 0))
    if not free:
        where = "" if node is None else f" on node {node}"
        return f"no page of {_HUGE >> 20} MiB is free and not promised{where}"
    if 2 * need > free:
        return f"{need} pages are more than half of the {free} that are free and not promised; {_ASK}"
    return ""
