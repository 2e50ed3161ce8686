"""The frame of report.html: style and small pieces of HTML. Text is escaped only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


class Fact(NamedTuple):
    """A number at the top of the page. `meaning`: an explanation, if the name is not enough."""

    name: str
    value: str
    meaning: str = ""


class Key(NamedTuple):
    """An entry of a legend. `shape`: line, box or marker; `style`: its class in the style sheet."""

    shape: str
    style: str
    meaning: str


_SHAPES = {
    "line": '<line class="line {}" x1="1" x2="17" y1="9" y2="9"/>',
    "box": '<rect class="{}" x="1" y="3" width="16" height="12" rx="2"/>',
    "marker": '<g class="marker"><rect class="{}" x="0" y="0" width="18" height="18" rx="9"/>'
    '<text x="9" y="13" text-anchor="middle">n</text></g>',
}


def page(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def heading(title: str) -> str:
    return f"<h3>{escape(title)}</h3>"


def tiles(facts: Iterable[Fact]) -> str:
    items = []
    for name, value, meaning in facts:
        below = f'<dd class="meaning">{escape(meaning)}</dd>' if meaning else ""
        items.append(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{below}</div>")
    return f'<section><dl class="tiles">{"".join(items)}</dl></section>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """Return a table that scrolls sideways, with a hint, if the page is too narrow for it."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ['class="number"' if number else 'class="what"' for number in numeric]
        return "".join(f"<{tag} {kind}>{escape(cell)}</{tag}>" for cell, kind in zip(row, kinds, strict=True))

    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    hint = '<p class="hint">Scroll this table sideways to see all columns →</p>'
    return f'<div class="scroll"><div class="inner">{hint}<table>{head}<tbody>{body}</tbody></table></div></div>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def lead(text: str) -> str:
    """Return the sentence that says what a section is about."""
    return f'<p class="lead">{escape(text)}</p>'


def place(what: str, path: str) -> str:
    """Return a path or a command that a user may copy, after a word that says what it is."""
    return f'<p class="place">{escape(what)} <code>{escape(path)}</code></p>'


def meanings(entries: Iterable[tuple[str, str]]) -> str:
    """Return a list of words, each with its meaning."""
    items = "".join(f"<div><dt>{escape(word)}</dt><dd>{escape(meaning)}</dd></div>" for word, meaning in entries)
    return f'<dl class="meanings">{items}</dl>'


def legend(keys: Iterable[Key]) -> str:
    items = "".join(
        f'<span><svg viewBox="0 0 18 18">{_SHAPES[key.shape].format(key.style)}</svg>'
        f"<span>{escape(key.meaning)}</span></span>"
        for key in keys
    )
    return f'<div class="legend">{items}</div>'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, text: str) -> str:
    return f"<section><details><summary>{escape(title)}</summary>{preformatted(text)}</details></section>"
