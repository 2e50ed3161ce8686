"""The frame of report.html: style and small pieces of HTML. Text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


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


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<section><dl class="tiles" style="margin:0">{items}</dl></section>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ['class="number"' if number else 'class="what"' for number in numeric]
        return "".join(f"<{tag} {kind}>{escape(cell)}</{tag}>" for cell, kind in zip(row, kinds, strict=True))

    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(class of the line, name) each."""
    items = "".join(
        f'<span><svg viewBox="0 0 18 8"><line class="line {style}" x1="1" x2="17" y1="4" y2="4"/></svg>'
        f"{escape(name)}</span>"
        for style, name in entries
    )
    return f'<div class="legend">{items}</div>'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, text: str) -> str:
    return f"<section><details><summary>{escape(title)}</summary>{preformatted(text)}</details></section>"
