"""Whether the cluster's CustomResourceDefinition belongs to another version than this operator.

The API server drops fields of a job that an older definition lacks, without an error; a newer definition accepts fields
that this operator ignores. The published schema is compared with the schema of this operator. Every service account may
read it, so no further right is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from trainmaster_operator.api.crd import crd_schema
from trainmaster_operator.cluster.port import JOB, ApiError, Object
from trainmaster_operator.runtime.observability.operator_metrics import Metrics

log = logging.getLogger(__name__)

SHOWN = 5  # Maximum number of fields in a message.
COMPARE_AGAIN_S = 300.0  # A definition may be upgraded without a restart of the operator.


class Publishes(Protocol):
    """A cluster that returns the published schema of a kind."""

    async def published_schema(self, kind: str) -> Object | None: ...


@dataclass(frozen=True)
class Difference:
    """Paths of fields. `missing`: the definition in the cluster lacks them. `unknown`: this operator does not know
    them."""

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def sentences(self) -> Iterator[str]:
        """Yield sentences that say what is different and what to do."""
        if self.missing:
            yield (
                f"the cluster's CustomResourceDefinition is older than this operator: it lacks {_some(self.missing)}, "
                "and the API server drops these fields from jobs; upgrade it with the chart (crds.enabled=true), or by "
                "kubectl apply --server-side --force-conflicts -f charts/trainmaster/files/crds"
            )
        if self.unknown:
            yield (
                f"the cluster's CustomResourceDefinition is newer than this operator, which does not obey "
                f"{_some(self.unknown)}; upgrade the operator"
            )


def compare(published: Object, expected: Object | None = None) -> Difference:
    """Compare the fields of spec and status of two schemas of a job. `expected`: the schema of this operator by
    default."""
    there = frozenset(_fields(published))
    here = _own_fields() if expected is None else frozenset(_fields(expected))
    return Difference(_outermost(here - there), _outermost(there - here))


@lru_cache(maxsize=1)
def _own_fields() -> frozenset[str]:
    """Return the fields that this operator knows. To make its schema takes 0.1 s, in which no job is served."""
    return frozenset(_fields(crd_schema.job_schema()))


async def report(cluster: Publishes, metrics: Metrics, known: Difference | None = None) -> Difference | None:
    """Set the metrics, and log how the definition in the cluster differs unless that is `known` already. Return the
    difference; `known` if the API server does not publish a schema."""
    try:
        published = await cluster.published_schema(JOB)
    except ApiError as error:
        log.info("the schema of jobs could not be read: %s", error)
        return known
    if published is None:
        return known
    found = compare(published)
    metrics.crd_missing.set(len(found.missing))
    metrics.crd_unknown.set(len(found.unknown))
    if found != known:
        for sentence in found.sentences():
            log.warning("%s", sentence)
    return found


async def report_repeatedly(cluster: Publishes, metrics: Metrics) -> None:
    """Report differences until cancelled, each one once."""
    known: Difference | None = None
    while True:
        known = await report(cluster, metrics, known)
        await asyncio.sleep(COMPARE_AGAIN_S)


def _fields(schema: Object) -> Iterator[str]:
    for part in ("spec", "status"):
        yield from _below(part, (schema.get("properties") or {}).get(part) or {})


def _below(path: str, schema: Object) -> Iterator[str]:
    yield path
    for name, child in (schema.get("properties") or {}).items():
        yield from _below(f"{path}.{name}", child)
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), dict):
            yield from _below(f"{path}{mark}", schema[key])


def _outermost(paths: frozenset[str]) -> tuple[str, ...]:
    """Return the paths, sorted, without those that lie below another one."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith((f"{above}.", f"{above}[")) for above in kept):
            kept.append(path)
    return tuple(kept)


def _some(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more
