"""Jobs on a cluster, for the commands that a person types: whatever goes wrong there is one sentence."""

from __future__ import annotations

import difflib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trainmaster_operator.api.meta import JOB_KIND
from trainmaster_operator.cli import kubeconfig
from trainmaster_operator.cli.container_logs import Read, reader
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster
from trainmaster_operator.cluster.port import (
    JOB,
    ApiError,
    Cluster,
    Forbidden,
    NotFound,
    Object,
    TooManyRequests,
    Unavailable,
)

CONNECTIONS = 4096  # whoever follows all logs holds one for each pod
SHOWN = 5  # names in a hint


@dataclass(frozen=True)
class Target:
    """A namespace of a cluster. `address`: of its API server, for people. `read`: containers' logs. `try_create`: a dry
    run of a creation, which raises as a creation would; None where nothing is created. `disruption_budgets`: lists the
    namespace's."""

    cluster: Cluster
    namespace: str
    read: Read
    address: str = "the cluster"
    try_create: Callable[[str, Object], Awaitable[None]] | None = None
    disruption_budgets: Callable[[str], Awaitable[Sequence[Object]]] | None = None


@asynccontextmanager
async def connected(where: Where) -> AsyncIterator[Target]:
    """Raises Refusal when there is no way to the cluster, and for what it refuses inside."""
    found = kubeconfig.find(where)
    logging.getLogger("trainmaster_operator").addHandler(logging.NullHandler())  # people get sentences, not logs
    try:
        cluster = await KubernetesCluster.connect(found.kubeconfig, context=found.context, connections=CONNECTIONS)
    except NoCluster as error:
        raise Refusal(str(error)) from None
    target = Target(
        cluster,
        found.namespace,
        reader(cluster.connection),
        cluster.connection.host,
        cluster.try_create,
        cluster.disruption_budgets,
    )
    try:
        async with explained(target):
            yield target
    finally:
        await cluster.close()


@asynccontextmanager
async def explained(target: Target) -> AsyncIterator[None]:
    """What the API server refuses, as a Refusal."""
    try:
        yield
    except (Unavailable, TooManyRequests) as error:
        if str(error) == "Unauthorized":
            raise Refusal(f"{target.address}: does not accept the credentials of the kubeconfig's user") from None
        raise Refusal(f"{target.address}: the cluster does not answer as expected: {one_line(error)}") from None
    except Forbidden as error:
        raise Refusal(f"namespace {target.namespace}: not allowed: {one_line(error)}") from None
    except ApiError as error:
        raise Refusal(f"namespace {target.namespace}: {one_line(error)}") from None


async def find(target: Target, name: str) -> Object:
    """The job. Raises Refusal with the nearest name when there is none."""
    try:
        return await target.cluster.get(JOB, target.namespace, name)
    except NotFound:
        pass
    names = [job["metadata"]["name"] for job in await jobs(target)]
    raise Refusal(f"{target.namespace}/{name}: there is no such job{_hint(name, names, target.namespace)}")


async def jobs(target: Target) -> list[Object]:
    try:
        return (await target.cluster.list(JOB, target.namespace)).items
    except NotFound:
        raise not_installed(target) from None


def not_installed(target: Target) -> Refusal:
    return Refusal(f"{target.address}: does not know the kind {JOB_KIND}: Trainmaster is not installed there")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _hint(name: str, names: list[str], namespace: str) -> str:
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]}?"
    if not names:
        return f"; namespace {namespace} holds none"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"; the namespace has {', '.join(names[:SHOWN])}{more}"
