"""The kinds of faults as a part of the help, from the trainer's table."""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterator
from types import ModuleType

NOT_ON_A_CLUSTER = {
    "lose-node": "a command cannot take a machine away: stop its kubelet and its containers, or the machine itself",
    "kill-operator": "the operator does not belong to this job: delete its leading pod with kubectl delete pod",
    "crash-operator": "only `trainmaster run` can count the operator's writes: delete its leading pod instead",
    "api-outage": "the API server does not belong to this job: stop it, or block the operator with a NetworkPolicy",
}
"""Kinds that `trainmaster fault` refuses, each with what to do instead."""

_INDENT, _WIDTH = 22, 80
_GRAMMAR = (
    "kinds of faults:\n"
    "  A fault is KIND:KEY=VALUE,KEY=VALUE. Each kind has the keys rank (default: 0)\n"
    "  and step: the fault happens after the backward pass of that step. "
)


def names() -> list[str]:
    """Return the kinds of faults; [] if the trainer is not installed."""
    table = _table()
    return list(table.KINDS) if table is not None else []


def of_a_run() -> str:
    """Return the kinds that `trainmaster run --fault` takes."""
    return _listed(f"{_GRAMMAR}Give a\n  step in each fault.", ())


def of_a_job() -> str:
    """Return the kinds that `trainmaster fault` takes."""
    return _listed(
        f"{_GRAMMAR}Without\n  a step it happens now. kill-pod has no step: it deletes the pod now.", NOT_ON_A_CLUSTER
    )


def _listed(beginning: str, left_out: Container[str]) -> str:
    table = _table()
    if table is None:
        return ""
    return "\n".join(
        [beginning, *(line for kind in table.KINDS if kind not in left_out for line in _lines(table, kind))]
    )


def _lines(table: ModuleType, kind: str) -> Iterator[str]:
    """Yield what a kind does and, below it, its further keys with their defaults."""
    import textwrap  # Only the help needs it.

    beginning, margin = f"  {kind}".ljust(_INDENT), " " * _INDENT
    yield textwrap.fill(table.KINDS[kind].what, _WIDTH, initial_indent=beginning, subsequent_indent=margin)
    defaults = table.parse(kind, now=True)
    for key in table.KINDS[kind].keys:
        value = getattr(defaults, key)
        others = [word for word in table.WORDS.get(key, ()) if word != value]
        choice = f" or {key}=".join([f"{value:g}" if isinstance(value, float) else str(value), *others])
        yield f"{margin}{key}={choice} (default: {value})" if others else f"{margin}{key} (default: {choice})"


def _table() -> ModuleType | None:
    try:
        return importlib.import_module("trainmaster.rank.injected_faults")
    except ModuleNotFoundError:
        return None  # The operator's image has no trainer.
