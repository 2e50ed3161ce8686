"""How numbers are written for people: losses, durations, rates, amounts of memory."""

from __future__ import annotations

MOST_LOSS = 1e5


def loss(text: str) -> str:
    """Return a loss for people: with four decimals, or with a power of ten if that would be long. Text that is no
    number is returned unchanged."""
    try:
        return f"{float(text):.4f}" if abs(float(text)) < MOST_LOSS else f"{float(text):.4g}"
    except ValueError:
        return text or "-"


def seconds(value: float | None) -> str:
    """Return a duration in seconds as text: 0.1234 -> "123 ms", 12.34 -> "12.3 s", 3723 -> "1:02:03"."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else _on_a_clock(value)


def remaining(value: float) -> str:
    """Return a remaining time in seconds as text, rounded to seconds: 12.34 -> "12 s", 95.3 -> "1:35"."""
    return f"{value:.0f} s" if value < 60 else _on_a_clock(value)


def clock(elapsed_s: float) -> str:
    """Return the time since the start of the display as text: 119.96 -> "02:00.0"."""
    minutes, tenths = divmod(round(elapsed_s * 10), 600)
    return f"{minutes:02}:{tenths // 10:02}.{tenths % 10}"


def _on_a_clock(value: float) -> str:
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(value: float) -> str:
    """Return a rate as text: 1234.5 -> "1.23k"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def memory(size: float) -> str:
    """Return a number of bytes as text in binary units, which can be compared with those of a machine."""
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= limit:
            return f"{size / limit:.3g} {unit}" if size / limit < 1000 else f"{size / limit:.0f} {unit}"
    return f"{size:.0f} B"
