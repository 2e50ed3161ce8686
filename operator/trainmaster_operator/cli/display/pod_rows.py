"""The pods of a job on a cluster in the picture: one row each, those with a reason first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmaster_operator.cli.display.status_diff import cut
from trainmaster_operator.cli.terminal_text import without_controls
from trainmaster_operator.planning.facts.observation import PodRecord

MOST_PODS = 16


def table(records: Sequence[PodRecord]) -> RenderableType:
    """Return a table of pods. Pods with a reason come first."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("pod", "state", "node", "why"):
        grid.add_column(title, overflow="fold" if title == "why" else "ellipsis")
    shown = sorted(records, key=lambda pod: (not pod.reason, pod.phase == "Running", pod.role, pod.slot, pod.name))
    for pod in shown[:MOST_PODS]:
        words = "Terminating" if pod.deleting else pod.phase
        style = "green" if words == "Running" else "red" if words in ("Failed", "Missing") else "yellow"
        reason, message = map(without_controls, (pod.reason, pod.message))
        why = ": ".join(part for part in (reason, cut(message)) if part)
        grid.add_row(pod.name, Text(words, style), pod.node, Text(why))
    if len(records) > MOST_PODS:
        return Group(grid, Text(f"and {len(records) - MOST_PODS} more pods", "dim"))
    return grid
