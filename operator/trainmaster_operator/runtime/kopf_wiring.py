"""kopf watches the jobs. It uses only `on.event`: it stores nothing, writes no events and adds nothing to anybody's
objects.

Its events feed the cache of jobs; the cache's own lists find what kopf never reports (objects that vanished while its
history was lost). If kopf fails, the process ends: training continues without an operator, and the next operator starts
from the written status.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import kopf

from trainmaster_operator.api.api_group import GROUP, JOB_PLURAL, VERSION
from trainmaster_operator.cluster import kubernetes_credentials
from trainmaster_operator.cluster.port import DELETED, Object

Feed = Callable[[bool, Object], None]
"""(deleted, object): one change of a job."""

Login = Callable[[], Awaitable[kopf.ConnectionInfo]]

RETRIES = 24
LONGEST_RETRY_S = 15.0  # Altogether about five minutes, so that a restart of the API server does not end this process.
ENDS_WITHIN_S = 1.0
LOGIN_EVERY_S = 1.0
LOGIN_BACKOFF_S = 5.0


class KopfEnded(Exception):
    """kopf, which should run until it is cancelled, has ended."""


class Backoffs:
    """Seconds between the attempts of one request, with jitter. It can be iterated any number of times, because kopf
    iterates it for each request."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    def __iter__(self) -> Iterator[float]:
        for attempt in range(RETRIES):
            yield min(LONGEST_RETRY_S, 0.2 * 2.0**attempt) * (1 - 0.5 * self._random.random())


def settings(chance: random.Random) -> kopf.OperatorSettings:
    """Return the settings with which kopf only watches."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True  # Namespaces and CRDs are neither listed nor watched.
    made.persistence.finalizer = f"{GROUP}/kopf"  # The finalizer is never set; the default would name another project.
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = 5.0
    made.networking.error_backoffs = Backoffs(chance)
    # A whole number: kopf sends it unchanged, and the API server accepts no fraction.
    made.watching.server_timeout = 300
    made.watching.client_timeout = 330.0
    made.watching.chunk_size = 500
    made.queueing.exit_timeout = 0.2
    made.execution.max_workers = 1  # For synchronous handlers, of which there are none.
    made.process.ultimate_exiting_timeout = None  # This operator ends the process itself.
    return made


def registry(feed: Feed, login: Login) -> kopf.OperatorRegistry:
    """Return kopf's registry with the login and the event handler for jobs."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made, backoff=LOGIN_BACKOFF_S)  # type: ignore[untyped-decorator]
    async def credentials(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    @kopf.on.event(GROUP, VERSION, JOB_PLURAL, registry=made)  # type: ignore[untyped-decorator]
    async def job_changed(event: kopf.RawEvent, **_: Any) -> None:
        obj: Object = dict(event["object"])
        obj["metadata"] = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        feed(event["type"] == DELETED, obj)

    return made


def login_with(kubeconfig: str | None, fresh_until: Callable[[], Any]) -> Login:
    """Return a login with the credentials that the adapter also uses. `fresh_until`: returns the datetime at which
    credentials are read again, because tokens in files are rotated. The login raises NoCluster."""
    last = float("-inf")

    async def login() -> kopf.ConnectionInfo:
        nonlocal last
        moment = asyncio.get_running_loop().time()
        if moment < last + LOGIN_EVERY_S:
            await asyncio.sleep(LOGIN_EVERY_S)  # Refused credentials are read again, but not without a pause.
        last = asyncio.get_running_loop().time()
        configuration = await kubernetes_credentials.load(kubeconfig)
        scheme, _, token = (await configuration.get_api_key_with_prefix("BearerToken") or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme.capitalize() or None,
            token=token or None,
            proxy_url=configuration.proxy,
            expiration=fresh_until(),
        )

    return login


async def watch_jobs(
    feed: Feed, login: Login, chance: random.Random, namespace: str | None, started: Callable[[], None]
) -> None:
    """Watch jobs until cancelled. Raise the error with which kopf fails, or KopfEnded.

    `started` is called after kopf has set its signal handlers, so that they can be replaced. kopf's own `run_tasks` is
    not used for the end: it would wait for every task that was created after kopf's start, and then cancel it.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    scope: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
    tasks = await kopf.spawn_tasks(registry=registry(feed, login), settings=settings(chance), standalone=True, **scope)
    started()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise KopfEnded(f"kopf's {', '.join(sorted(task.get_name() for task in done))} has ended")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=ENDS_WITHIN_S)
