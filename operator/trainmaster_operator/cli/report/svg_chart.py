"""Charts as SVG without scripts or outside references, with colours from the page's style sheet.

Shapes are scaled to the width of the page and text is not: each text is placed at a share of the width. So text has the
same size on a phone and on a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from trainmaster_operator.cli.report import html_page
from trainmaster_operator.cli.report.metrics_file import Points

HEIGHT = 210
"""Height of the area between the axes, in pixels."""
SCALE = 1000
"""Shapes are drawn on a square with this side, which is stretched over that area."""
NARROW = 250
"""Smallest width of that area in pixels, at which labels must not overlap."""
CHARACTER = 6.6
"""Approximate width of a digit, in pixels."""
BAR = 26
COLOURS = 12


@dataclass(frozen=True)
class Line:
    points: Points
    style: str  # A class of the page's style sheet.
    label: str = ""  # Shown while the pointer is on the line.


@dataclass(frozen=True)
class Marker:
    x: float
    # Shown at the top. Markers that are close to each other share one label, with their first and last number.
    number: int
    title: str  # Shown while the pointer is on the marker.


@dataclass(frozen=True)
class _Label:
    """The label of one marker, or of neighbours from `begin` to `end`, in pixels at the smallest width."""

    first: Marker
    last: Marker
    begin: float
    end: float
    titles: tuple[str, ...]

    @property
    def center(self) -> float:
        return (self.begin + self.end) / 2

    @property
    def text(self) -> str:
        same = self.first.number == self.last.number
        return str(self.first.number) if same else f"{self.first.number}-{self.last.number}"

    @property
    def width(self) -> float:
        return max(18.0, CHARACTER * len(self.text) + 10)

    def with_(self, other: _Label) -> _Label:
        return _Label(self.first, other.last, self.begin, other.end, self.titles + other.titles)


def line_chart(
    lines: Sequence[Line],
    name: str,
    x_title: str,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    markers: Sequence[Marker] = (),
    from_zero: bool = False,
    bands: Sequence[tuple[float, float]] = (),
) -> str:
    """Return a chart with one pair of axes. `bands`: stretches of x with a background. Without points, return a
    sentence."""
    points = [point for line in lines for point in line.points]
    if not points:
        return f'<p class="empty">No {escape(name)} was recorded.</p>'
    x_low, x_high = _spread(min(x for x, _ in points), max(x for x, _ in points))
    y_low, y_high = _range([y for _, y in points], from_zero)
    y_ticks = ticks(y_low, y_high, 5)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])

    def at_x(x: float) -> float:
        return (x - x_low) / (x_high - x_low)

    def at_y(y: float) -> float:
        return 1 - (min(max(y, y_low), y_high) - y_low) / (y_high - y_low)

    parts = [f'<div class="chart"><svg role="img" aria-label="{escape(name)}" height="{HEIGHT}">']
    for y in y_ticks:
        height = f"{at_y(y) * HEIGHT:.1f}"
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{height}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="0" y="{height}" dx="-8" dy="4" text-anchor="end">{show_y(y)}</text>')
    parts += _x_axis([(at_x(x), show_x(x)) for x in ticks(x_low, x_high, 8) if x_low <= x <= x_high], x_title)
    shown = [marker for marker in markers if x_low <= marker.x <= x_high]
    parts.append(f'<svg viewBox="0 0 {SCALE} {SCALE}" preserveAspectRatio="none" width="100%" height="{HEIGHT}">')
    for begin, end in bands:
        left, right = at_x(begin) * SCALE, at_x(end) * SCALE
        parts.append(f'<rect class="band" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{SCALE}"/>')
    if shown:
        path = "".join(f"M{at_x(marker.x) * SCALE:.1f} -40V{SCALE}" for marker in shown)
        parts.append(f'<path class="marks" d="{path}"/>')
    for line in lines:
        title = f"<title>{escape(line.label)}</title>" if line.label else ""
        path = " ".join(f"{at_x(x) * SCALE:.1f},{at_y(y) * SCALE:.0f}" for x, y in line.points)
        if len(line.points) > 1:
            parts.append(f'<polyline class="line {line.style}" points="{path}">{title}</polyline>')
    parts.append("</svg>")
    for line in lines:
        if len(line.points) == 1:
            x, y = at_x(line.points[0][0]), at_y(line.points[0][1])
            parts.append(f'<circle class="{line.style}" cx="{x:.2%}" cy="{y * HEIGHT:.1f}" r="3"/>')
    parts += [_pill(label) for label in _labels([(at_x(marker.x), marker) for marker in shown])]
    parts.append("</svg></div>")
    return "".join(parts)


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], show: Callable[[float], str]) -> str:
    """Return a bar for each row (name, parts), with its parts (name, size) one after the other, all on one scale.
    Parts have the colours of `colours`."""
    longest = max((math.fsum(size for _, size in parts) for _, parts in rows), default=0.0)
    if longest <= 0:
        return ""
    styles = colours(rows)
    height = BAR * len(rows)
    svg = [f'<div class="bars"><svg role="img" aria-label="where the time went" height="{height}">']
    for i, (name, parts) in enumerate(rows):
        y, x = BAR * i + 4, 0.0
        svg.append(f'<text class="tick" x="0" y="{y + 13}" dx="-8" text-anchor="end">{escape(name)}</text>')
        for part, size in parts:
            title = f"<title>{escape(part)} {escape(show(size))}</title>"
            svg.append(
                f'<rect class="part {styles[part]}" x="{x / longest:.3%}" y="{y}" width="{size / longest:.3%}" '
                f'height="18">{title}</rect>'
            )
            x += size
    svg.append("</svg></div>")
    return "".join(svg)


def bars_with_legend(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], show: Callable[[float], str]
) -> tuple[str, str]:
    """Return `bars`, and the legend of their parts."""
    keys = (html_page.Key("box", style, part) for part, style in colours(rows).items())
    return bars(rows, show), html_page.legend(keys)


def colours(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> dict[str, str]:
    """Return a class of the style sheet for each part of the bars: the same part has the same colour in all rows."""
    names = dict.fromkeys(part for _, parts in rows for part, _ in parts)
    return {name: f"p{i % COLOURS}" for i, name in enumerate(names)}


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` round numbers that span low..high."""
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _x_axis(shown: Sequence[tuple[float, str]], title: str) -> list[str]:
    """Return the parts of the x axis. `shown`: (share of the width, text). On a narrow page only as many texts are
    shown as fit."""
    widest = max((len(text) for _, text in shown), default=1)
    every = math.ceil(len(shown) * (CHARACTER * widest + 12) / NARROW)
    parts = [f'<line class="axis" x1="0" x2="100%" y1="{HEIGHT}" y2="{HEIGHT}"/>']
    for i, (x, text) in enumerate(shown):
        style = "tick" if i % every == 0 else "tick fine"
        parts.append(f'<text class="{style}" x="{x:.2%}" y="{HEIGHT + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<text class="title" x="100%" y="{HEIGHT + 36}" text-anchor="end">{escape(title)}</text>')
    return parts


def _labels(markers: Sequence[tuple[float, Marker]]) -> list[_Label]:
    """Return one label for each marker (share of the width, marker), or for several markers whose labels would
    overlap."""
    found: list[_Label] = []
    for x, marker in markers:
        label = _Label(marker, marker, x * NARROW, x * NARROW, (marker.title,))
        while found and label.center - label.width / 2 < found[-1].center + found[-1].width / 2 + 2:
            label = found.pop().with_(label)
        found.append(label)
    return found


def _pill(label: _Label) -> str:
    half = label.width / 2
    center = min(max(label.center, half - 20), NARROW + 20 - half)  # The label may extend into the margins.
    titles = [*label.titles[:5], *([f"and {len(label.titles) - 5} more"] if len(label.titles) > 5 else [])]
    return (
        f'<svg class="marker" x="{center / NARROW:.2%}" y="-26"><title>{escape(chr(10).join(titles))}</title>'
        f'<rect x="{-half:.1f}" y="0" width="{label.width:.1f}" height="18" rx="9"/>'
        f'<text x="0" y="13" text-anchor="middle">{escape(label.text)}</text></svg>'
    )


def _range(values: list[float], from_zero: bool) -> tuple[float, float]:
    """Return the range of the axis. A few extreme values at the start are cut off, so that they do not compress the
    rest."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    calm = ordered[int(0.995 * (len(ordered) - 1))]
    if len(ordered) > 50 and high - low > 4 * (calm - low) > 0:
        high = calm + 0.5 * (calm - low)
    return _spread(min(0.0, low) if from_zero else low, high)


def _spread(low: float, high: float) -> tuple[float, float]:
    """Return an interval that is not empty."""
    return (low, high) if high > low else (low - 0.5, high + 0.5)
