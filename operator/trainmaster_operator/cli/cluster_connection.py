"""The connection to a cluster for the commands of a user. Every error is one sentence."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trainmaster_operator.api.api_group import JOB_KIND
from trainmaster_operator.cli import kubeconfig
from trainmaster_operator.cli.container_logs import Read, reader
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.terminal_text import without_controls
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster
from trainmaster_operator.cluster.port import (
    ApiError,
    Cluster,
    Forbidden,
    Object,
    TooManyRequests,
    Unavailable,
)

CONNECTIONS = 4096  # A command that follows all logs holds one connection for each pod.


@dataclass(frozen=True)
class Target:
    """A namespace of a cluster. `address`: of its API server, for people. `read`: reads logs of containers.
    `try_create`: a dry run of a creation, which raises as a creation would; None if nothing is created.
    `disruption_budgets`: lists those of the namespace."""

    cluster: Cluster
    namespace: str
    read: Read
    address: str = "the cluster"
    try_create: Callable[[str, Object], Awaitable[None]] | None = None
    disruption_budgets: Callable[[str], Awaitable[Sequence[Object]]] | None = None


@asynccontextmanager
async def connected(where: Where) -> AsyncIterator[Target]:
    """Yield the namespace of the cluster. Raise Refusal if there is no way to the cluster, and for calls inside that
    it refuses."""
    found = kubeconfig.find(where)
    logging.getLogger("trainmaster_operator").addHandler(logging.NullHandler())  # Users get sentences, not logs.
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
    """Raise a Refusal for every call inside that the API server refuses."""
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


def not_installed(target: Target) -> Refusal:
    """Return the refusal for a cluster that does not know the kind of jobs."""
    return Refusal(f"{target.address}: does not know the kind {JOB_KIND}: Trainmaster is not installed there")


def one_line(error: Exception) -> str:
    """Return the message of an error on one line. It may quote others, such as a webhook, so it is made harmless for a
    terminal."""
    return without_controls(" ".join(str(error).split())) or type(error).__name__
