# SPDX-License-Identifier: Apache-2.0
"""Physical cores of a socket by the model name that the CPU gives (CPUID, /proc/cpuinfo `model name`).

A name that a hypervisor made up (`AMD EPYC-Rome Processor`, `Intel Xeon Processor (Skylake)`, `QEMU Virtual CPU`)
and one that names no part (`Intel(R) Xeon(R) CPU @ 2.20GHz`) tell nothing: the answer is None, never a guess.
"""

from __future__ import annotations

import re

# AMD, Hygon and some others: "AMD EPYC 9634 84-Core Processor".
_SPELLED_OUT = re.compile(r"\b(\d{1,3})-Cores?\b", re.IGNORECASE)
_AMD_PART = re.compile(r"\bEPYC\s+(\w+)", re.IGNORECASE)
_XEON_PART = re.compile(
    r"\bXeon\(R\)\s+(?:Platinum|Gold|Silver|Bronze|Max)?\s*(?:CPU\s+)?(\w+\+?)(?:\s|$)", re.IGNORECASE
)
_E_PART = re.compile(r"\b(E[57]-\s?\d{4}L?W?(?:\s0|\s?v[2-4]|A v4)?)(?:\s|$)")

# Parts made for one cloud, whose names leave the number of cores out. A part is only in these tables when a listing of
# the maker's or a whole machine (a bare-metal instance) shows its cores; others are unknown.
_AMD: dict[int, str] = {
    96: "9R14",
}
# "Total Cores" of ark.intel.com. Those with M, CL and C behind 8175, 8275, 8375 and 8488 are made for AWS.
_XEON: dict[int, str] = {
    4: "8156 5122 4112 8256 5222",
    6: "6128 3104 3204",
    8: "6144 6134 4108 4110 3106 6234 6244 5217 4208 4215 4215R 3206R 6334 5315Y 4309Y 6434 5415+ 6534 5515+ 4509Y",
    10: "5115 4114 5215 4210 4210R 4310T 4410T",
    12: "8158 6146 6136 6126 5118 4116 6226 6246 4214 4214R 5317 4310 4410Y 4510 4510T",
    14: "6132 5120",
    16: "8153 6142 6130 8253 6226R 6242 6246R 5218 4216 6346 6326 4314 8444H 6444Y 6426Y 5416S 6544Y 6526Y 4514Y",
    18: "6154 6150 6140 6240 6254 5220",
    20: "6148 6138 6230 6242R 6248 6209U 6210U 5218R 5320T 4316 4416+",
    22: "6152 6238",
    24: (
        "8168 8160 8160F 8160M 8160T 8175M 8268 8260 8260L 8260Y 8275CL 6240R 6248R 6252 6212U 5220R "
        "6342 6338T 6336Y 6312U 5318Y 5318S 5318N 6442Y 6542Y 4516Y+ 5418Y 5418N 5412U"
    ),
    26: "8170 8170M 8164 8270 6230R 5320",
    28: "8180 8180M 8176 8176F 8280 8280L 8276 8276L 6238R 6258R 6348 6330 6330N 8450H 5420+ 5520+",
    32: (
        "8362 8358 8358P 8352Y 8352S 8352M 8375C 6338 6338N 6314U 8462Y+ 8454H 6458Q 6454S 6448Y 6448H 6438Y+ "
        "6438M 6438N 6430 6421N 8562Y+ 6558Q 6548Y+ 6548N 6538Y+ 6538N 6530"
    ),
    36: "8360Y 8352V 8351N 8452Y 6554S",
    38: "8368 8368Q",
    40: "8380 8460Y+ 8460H 9460",
    44: "8458P",
    48: "9242 8468 8468V 8468H 8461V 8488C 9468 8568Y+ 8558 8558P 8558U",
    52: "8470 8470N 8470Q 9470 8571N",
    56: "9282 8480+ 9480 8570",
    60: "8490H 8580 8581V",
    64: "8592+ 8592V 8593Q",
    96: "6972P 6952P",
    120: "6979P",
    128: "6980P",
}
_E_SERIES: dict[int, str] = {
    4: "E5-2637v2 E5-2637v3 E5-2637v4",
    6: (
        "E5-2640 E5-2630 E5-2620 E5-2630v2 E5-2620v2 E5-2643v2 E5-2620v3 E5-2643v3 E5-2643v4 E5-2603v4 E5-2603v3 "
        "E5-2609v3"
    ),
    8: (
        "E5-2690 E5-2680 E5-2670 E5-2665 E5-2660 E5-2650 E5-2650v2 E5-2640v2 E5-2667v2 E5-2640v3 E5-2630v3 E5-2667v3 "
        "E5-2620v4 E5-2667v4 E5-2609v4"
    ),
    10: (
        "E7-4870 E7-8870 E5-2690v2 E5-2680v2 E5-2670v2 E5-2660v2 E5-2660v3 E5-2650v3 E5-2640v4 E5-2630v4"
    ),
    12: "E5-2697v2 E5-2695v2 E5-2690v3 E5-2680v3 E5-2670v3 E5-2650v4",
    14: "E5-2697v3 E5-2695v3 E5-2683v3 E5-2690v4 E5-2680v4 E5-2660v4",
    16: "E5-2698v3 E5-2697Av4 E5-2683v4",
    18: "E5-2699v3 E5-2697v4 E5-2695v4 E5-2686v4",
    20: "E5-2698v4",
    22: "E5-2699v4",
}


def cores_per_socket(name: str | None) -> int | None:
    """Physical cores of one socket of the CPU NAME; None where the name does not tell."""
    text = " ".join((name or "").split())
    spelled = _SPELLED_OUT.search(text)
    if spelled:
        return int(spelled[1]) or None
    amd = _AMD_PART.search(text)
    if amd and "AMD" in text:
        return _look_up(_AMD, amd[1])
    if "intel" not in text.lower():
        return None
    older = _E_PART.search(text)
    if older:
        part = older[1].replace(" 0", "").replace(" ", "")
        return _look_up(_E_SERIES, part)
    xeon = _XEON_PART.search(text)
    return _look_up(_XEON, xeon[1]) if xeon else None


def front_side_bus(vendor: str | None, family: int | None, model: int | None) -> bool:
    """Whether the CPU is of the time before memory controllers in the socket: all its sockets share one memory.

    Intel family 15 (NetBurst) and the Core 2 models of family 6, up to 29 (Dunnington), without 26 (Nehalem-EP, the
    first with its own controller), 28 (Atom).
    """
    if vendor != "GenuineIntel" or family is None:
        return False
    return family == 15 or (family == 6 and model in (15, 22, 23, 29))


def _look_up(table: dict[int, str], part: str) -> int | None:
    return next((cores for cores, parts in table.items() if part in parts.split()), None)
