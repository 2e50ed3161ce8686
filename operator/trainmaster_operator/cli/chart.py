"""Line charts as SVG, drawn by us: no script, no outside reference, colours from the page's variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from trainmaster_operator.cli.metrics import Points

WIDTH, HEIGHT = 920, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 22, 34


@dataclass(frozen=True)
class Line:
    points: Points
    style: str  # a class of the page's style sheet
    label: str = ""  # shown while the pointer is on the line


@dataclass(frozen=True)
class Marker:
    x: float
    label: str  # one or two characters at the top
    title: str  # shown while the pointer is on it


def line_chart(
    lines: Sequence[Line],
    name: str,
    x_title: str,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    markers: Sequence[Marker] = (),
    from_zero: bool = False,
) -> str:
    """An <svg> with one pair of axes. Without points: a sentence that says so."""
    points = [point for line in lines for point in line.points]
    if not points:
        return f'<p class="empty">No {escape(name)} was recorded.</p>'
    x_low, x_high = _spread(min(x for x, _ in points), max(x for x, _ in points))
    y_low, y_high = _range([y for _, y in points], from_zero)
    y_ticks = ticks(y_low, y_high, 5)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])

    def at_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        y = min(max(y, y_low), y_high)
        return HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">']
    for y in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at_y(y) + 4:.1f}" text-anchor="end">{show_y(y)}</text>')
    for x in ticks(x_low, x_high, 8):
        if x_low <= x <= x_high:
            parts.append(
                f'<text class="tick" x="{at_x(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                f"{show_x(x)}</text>"
            )
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="title" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{escape(x_title)}</text>')
    for marker in markers:
        if x_low <= marker.x <= x_high:
            x = at_x(marker.x)
            parts.append(
                f'<g class="marker"><line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 2}" y2="{base}"/>'
                f'<circle cx="{x:.1f}" cy="{TOP - 10}" r="9"/>'
                f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{escape(marker.label)}</text>'
                f"<title>{escape(marker.title)}</title></g>"
            )
    for line in lines:
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line.points)
        title = f"<title>{escape(line.label)}</title>" if line.label else ""
        if len(line.points) == 1:
            x, y = line.points[0]
            parts.append(
                f'<circle class="dot {line.style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3">{title}</circle>'
            )
        elif line.points:
            parts.append(f'<polyline class="line {line.style}" points="{path}">{title}</polyline>')
    parts.append("</svg>")
    return "".join(parts)


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], show: Callable[[float], str]) -> str:
    """An <svg> with a bar for each row (name, parts), its parts (name, size) end to end, all to one scale.

    A part has the same colour in all rows.
    """
    colours: dict[str, int] = {}
    longest = max((math.fsum(size for _, size in parts) for _, parts in rows), default=0.0)
    if longest <= 0:
        return ""
    height = 26 * len(rows)
    svg = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="where the time went">']
    for i, (name, parts) in enumerate(rows):
        y, x = 26 * i + 4, float(LEFT)
        svg.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        for part, size in parts:
            colour = colours.setdefault(part, len(colours)) % 8
            width = size / longest * (WIDTH - LEFT - RIGHT)
            drawn = max(0.5, width - 1)
            title = f"<title>{escape(part)} {escape(show(size))}</title>"
            svg.append(
                f'<rect class="part p{colour}" x="{x:.1f}" y="{y}" width="{drawn:.1f}" height="18" rx="2">'
                f"{title}</rect>"
            )
            if width > 7 * len(part) + 10:
                svg.append(f'<text class="inside" x="{x + 6:.1f}" y="{y + 13}">{escape(part)}</text>')
            x += width
    svg.append("</svg>")
    return "".join(svg)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that span low..high, roughly `about` of them."""
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _range(values: list[float], from_zero: bool) -> tuple[float, float]:
    """Of the axis. A few wild values at the start don't squeeze the rest: they are cut off at the edge."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    calm = ordered[int(0.995 * (len(ordered) - 1))]
    if len(ordered) > 50 and high - low > 4 * (calm - low) > 0:
        high = calm + 0.5 * (calm - low)
    return _spread(min(0.0, low) if from_zero else low, high)


def _spread(low: float, high: float) -> tuple[float, float]:
    """An interval that isn't empty."""
    return (low, high) if high > low else (low - 0.5, high + 0.5)
