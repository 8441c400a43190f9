# SPDX-License-Identifier: GPL-3.0-or-later
"""Latency distributions as an SVG picture: time on a logarithmic axis, part of the calls up to 99.9 % on the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT, LEFT, BOTTOM, LEGEND = 920, 420, 60, 40, 230
COLOURS = ("#0b6e99", "#d1495b", "#edae49", "#3d8361", "#8d5a97", "#6b705c", "#e07a5f", "#1d3557", "#999999")
_PARTS = np.concatenate([np.linspace(0, 99, 199), np.linspace(99, 99.9, 19)])


def svg(curves: Mapping[str, npt.NDArray[np.int64]]) -> str:
    """The picture of CURVES: for each name the times of its calls in ns."""
    points = {name: np.percentile(times, _PARTS) / 1e3 for name, times in curves.items()}
    low = 10 ** math.floor(math.log10(min(values[0] for values in points.values())))
    high = 10 ** math.ceil(math.log10(max(values[-1] for values in points.values())))
    plot = WIDTH - LEFT - LEGEND

    def across(us: float) -> float:
        return LEFT + plot * math.log10(us / low) / math.log10(high / low)

    def up(percent: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 20) * percent / 100

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    tick = low
    while tick <= high:
        x = across(tick)
        lines.append(f'<path d="M{x:.1f} 20V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{tick:g} us</text>')
        tick *= 10
    for percent in (0, 25, 50, 75, 100):
        y = up(percent)
        lines.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + plot}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for i, (name, values) in enumerate(sorted(points.items(), key=lambda item: float(np.median(item[1])))):
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if i >= len(COLOURS) else ""
        path = "L".join(f"{across(us):.1f} {up(part):.1f}" for us, part in zip(values, _PARTS, strict=True))
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        y = 30 + 18 * i
        x = LEFT + plot + 14
        lines.append(f'<path d="M{x} {y}h22" stroke="{colour}" stroke-width="3"{dash}/>')
        lines.append(f'<text x="{x + 28}" y="{y + 4}">{escape(name)}</text>')
    lines.append(
        f'<text x="{LEFT + plot / 2}" y="{HEIGHT - 4}" text-anchor="middle">round trip, 48 KiB there, 4 KiB back</text>'
    )
    return "\n".join([*lines, "</svg>", ""])
