"""A tuning curve as SVG: estimated latency over trials. Some lines of text need no plotting library of 30 MB."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 40, 60
TICKS = 5
FONT = 'font-family="sans-serif" font-size="12"'
UPWARDS = f'transform="rotate(-90 18 {HEIGHT / 2})"'


def svg(curve: Sequence[Sequence[float]], trials: int, title: str) -> str:
    """The picture of a curve of [trial, seconds, estimated latency in seconds], drawn on to the last trial.

    Latency falls in steps: a point holds until the next one. Times in milliseconds, from 0.
    """
    points = [(float(point[0]), point[2] * 1e3) for point in curve]
    most_x = max([float(trials), 1.0, *(x for x, _ in points)])
    most_y = max((y for _, y in points), default=1.0) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + x / most_x * across, TOP + (1 - y / most_y) * down

    lines = []
    for tick in range(TICKS + 1):
        x, y = most_x * tick / TICKS, most_y * tick / TICKS
        (across, _), (_, down) = at(x, 0), at(0, y)
        lines += [
            f'<line x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{y:.4g}</text>',
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.0f}</text>',
        ]
    path = ""
    for number, (x, y) in enumerate(points):
        across, down = at(x, y)
        path += f"M{across:.1f},{down:.1f}" if number == 0 else f"H{across:.1f}V{down:.1f}"
    if points:
        path += f"H{at(most_x, 0)[0]:.1f}"
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" {FONT}>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{middle}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
            *lines,
            f'<path d="{path}" fill="none" stroke="#0a62a9" stroke-width="2"/>',
            f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">trial</text>',
            f'<text x="18" y="{HEIGHT / 2}" text-anchor="middle" {UPWARDS}>estimated latency, ms</text>',
            "</svg>",
            "",
        ]
    )
