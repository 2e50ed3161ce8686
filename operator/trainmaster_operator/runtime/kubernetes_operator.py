"""The operator on a cluster: `python -m trainmaster_operator.runtime.kubernetes_operator`, one of several replicas.

Every replica fills its caches and serves the control channel. One of them leads; the others answer agents with its
address. A replica that loses the lease, or whose kopf fails, ends: training continues, and the kubelet starts the
replica again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from urllib.parse import urlsplit

from prometheus_client import ProcessCollector, disable_created_metrics

from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster
from trainmaster_operator.cluster.kubernetes_nodes import KubernetesNodes
from trainmaster_operator.cluster.port import ApiError
from trainmaster_operator.control.crowd_event_loop import TurnLoop
from trainmaster_operator.control.http_server import ControlServer
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.manifests.security import PodSecurity
from trainmaster_operator.runtime import crd_version
from trainmaster_operator.runtime.authenticators import PodTokens
from trainmaster_operator.runtime.clock import RealClock
from trainmaster_operator.runtime.kopf_wiring import login_with, watch_jobs
from trainmaster_operator.runtime.leader.election_thread import Election
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading, lasting
from trainmaster_operator.runtime.observability.health import HealthServer
from trainmaster_operator.runtime.observability.metrics_access import MetricsAccess
from trainmaster_operator.runtime.observability.metrics_server import MetricsServer
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_options import parser
from trainmaster_operator.runtime.operator_settings import Settings
from trainmaster_operator.runtime.tasks_that_end_together import until_one_ends
from trainmaster_operator.runtime.tls_secret_or_folder import Authority

log = logging.getLogger(__name__)

RELIST_JOBS_S = 120.0  # Lists find what kopf never reports.
FRESH = timedelta(minutes=10)  # After this time kopf reads its credentials again.
RETRY_S = 2.0
GC_THRESHOLDS = (10_000, 20, 50)
EXIT_WITHIN_S = 4.5  # Seconds after SIGTERM, whatever hangs.


class CantListen(Exception):
    """A port is in use, or may not be used."""


class Replica:
    """One process. `run` ends after SIGTERM, or raises the error with which it fails."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._clock = RealClock()
        # Seeds are drawn here; everything inside gets its randomness injected.
        self._random = random.Random(os.urandom(16))
        self._stopping = asyncio.Event()
        self._serving = False

    async def run(self) -> None:
        """Run the replica until SIGTERM. Raise NoCluster, CantListen, and what its parts raise."""
        options, clock = self._options, self._clock
        self._take_signals()
        async with AsyncExitStack() as stack:
            metrics = Metrics()
            connect = partial(KubernetesCluster.connect, options.kubeconfig, metrics.called)
            cluster = await connect()
            stack.push_async_callback(cluster.close)
            chance = random.Random(self._random.random())
            election = Election(connect, clock, chance, options.identity, _lease(options))
            await election.start()
            stack.push_async_callback(election.close)
            authority = Authority(
                cluster,
                clock,
                options.namespace_of_operator,
                [urlsplit(options.operator_url).hostname or ""],
                options.tls_dir,
            )
            operator = Operator(
                cluster,
                clock,
                self._random,
                _settings(options, authority),
                authenticator=PodTokens(cluster, clock, authority.session_key),
                leader=election,
                metrics=metrics,
                nodes=KubernetesNodes(cluster.connection),
            )
            ProcessCollector(registry=metrics.registry)
            control_socket = _bound(options.control_port)
            stack.callback(control_socket.close)
            plain = operator.collect_metrics if options.plain_metrics else None
            health = HealthServer(operator.stuck, lambda: self._missing(operator), plain)
            await health.start(_bound(options.health_port))
            stack.push_async_callback(health.stop)
            if not options.plain_metrics:
                scrapes = MetricsServer(operator.collect_metrics, MetricsAccess(cluster, clock), authority.tls)
                await scrapes.start(_bound(options.metrics_port))
                stack.push_async_callback(scrapes.stop)
            await until_one_ends(
                self._stop_when_asked(operator),
                operator.lag.run(),
                self._operate(
                    operator,
                    election,
                    authority,
                    control_socket,
                    partial(crd_version.report_repeatedly, cluster, metrics),
                ),
            )

    async def _operate(
        self,
        operator: Operator,
        election: Election,
        authority: Authority,
        control_socket: socket.socket,
        report_definition: Callable[[], Awaitable[None]],
    ) -> None:
        due_s = await self._load(operator, authority)
        count = operator.metrics.channel_requests.labels
        control = ControlServer(
            operator.fleet,
            leader=lambda: _leader(election),
            leaderless_s=lambda: _leaderless_s(election),
            tls=authority.tls,
            counted=lambda result: count(result).inc(),
        )
        await control.start(control_socket)
        self._serving = True

        async def lead_or_wait() -> None:
            try:
                await operator.run()
            except NotLeading as error:
                log.error("%s: ending at once", error)
                os._exit(1)  # Another replica may lead at any moment, so there is no time for an orderly end.
            finally:
                await control.stop()  # At once, so that agents look for the next leader.

        async def compare_definition() -> None:
            await operator.jobs.synced.wait()  # Before this there may be no definition.
            await report_definition()

        await until_one_ends(
            lead_or_wait(), self._renew(operator, authority, due_s), compare_definition(), self._watch(operator)
        )

    async def _load(self, operator: Operator, authority: Authority) -> float:
        while True:
            try:
                return await self._refresh(operator, authority)
            except (ApiError, OSError, ValueError) as error:
                log.warning("the control channel has no certificate yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _renew(self, operator: Operator, authority: Authority, due_s: float) -> None:
        while True:
            await asyncio.sleep(due_s)
            due_s = await self._refresh(operator, authority)
            if operator.ready:
                await operator.reconciler.bundle_changed()

    async def _refresh(self, operator: Operator, authority: Authority) -> float:
        """Renew and publish the certificates that are due. Return the seconds until the next call."""
        due_s = await authority.refresh()
        for name, expires_at in authority.expiries().items():
            operator.metrics.certificates.labels(name).set(expires_at)
        if not self._options.plain_metrics:
            await authority.publish_bundle()
        return due_s

    async def _watch(self, operator: Operator) -> None:
        # Before this the kind of jobs may not exist yet, and kopf looks for kinds only when it starts.
        await operator.jobs.synced.wait()
        login = login_with(self._options.kubeconfig, lambda: datetime.now(timezone.utc) + FRESH)
        await watch_jobs(
            operator.jobs.feed, login, self._random, self._options.watch_namespace, started=self._take_signals
        )

    def _missing(self, operator: Operator) -> list[str]:
        """Return sentences that say why this replica could not take over now."""
        found = [
            f"{informer.kind}s are not listed yet"
            for informer in (operator.jobs, operator.pods)
            if not informer.synced.is_set()
        ]
        return found if self._serving else [*found, "the control channel has no certificate yet"]

    # -- the end

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop, number)

    def _ask_to_stop(self, number: int) -> None:
        if self._stopping.is_set():
            return
        log.info("%s: stopping", signal.Signals(number).name)
        self._stopping.set()
        deadline = threading.Timer(EXIT_WITHIN_S, _end_process)
        deadline.daemon = True
        deadline.start()

    async def _stop_when_asked(self, operator: Operator) -> None:
        await self._stopping.wait()
        operator.stop()
        if self._serving:
            await asyncio.Event().wait()  # The channel's end stops everything.


def _leader(election: Election) -> str | None:
    if election.leading:
        return None
    address = election.rival_address
    return f"https://{address}" if address else ""


def _leaderless_s(election: Election) -> float:
    """Return the seconds since no leader can have replaced the agent of a script that gets an answer of this process
    now; infinity if no such time is known."""
    return 0.0 if election.vouches else election.leaderless_s


def _lease(options: argparse.Namespace) -> LeaseSettings:
    return replace(
        lasting(options.lease_seconds),
        namespace=options.namespace_of_operator,
        watch=True,
        address=_address(options),
        pod_uid=options.pod_uid,
        standbys=True,
    )


def _settings(options: argparse.Namespace, authority: Authority) -> Settings:
    return Settings(
        operator_url=options.operator_url,
        identity=options.identity,
        pods=PodDefaults(
            options.operator_url,
            trainer_image=options.trainer_image,
            agent_image=options.agent_image,
            in_cluster=True,
            security=PodSecurity(
                options.job_user, options.job_group, options.job_fs_group, restrict=options.restrict_user_images
            ),
        ),
        ca_bundle=authority.bundle,
        peer_key=authority.session_key,
        judge_nodes=True,
        taint_nodes=options.taint_nodes,
        list_nodes=options.list_nodes,
        namespace=options.watch_namespace,
        relist_jobs_s=RELIST_JOBS_S,
        job_metrics=options.job_metrics,
        finished_metrics_s=options.finished_metrics_seconds,
        lease=_lease(options),
    )


def _address(options: argparse.Namespace) -> str:
    host = f"[{options.address}]" if ":" in options.address else options.address
    return f"{host}:{options.control_port}"


def _bound(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, IPv4 and IPv6 if both exist. Raise CantListen."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise CantListen(f"port {port}: {error.strerror}") from None


def _end_process() -> None:
    log.critical("did not stop within %g s: ending now", EXIT_WITHIN_S)
    os._exit(1)


def main() -> int:
    options = parser(__doc__).parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # What was created at start lives as long as the process, so the garbage collector need not examine it again. The
    # rest is mostly what is known about jobs and agents. It lives long, and with thousands of agents the collector
    # spent a quarter of all time on it.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # Otherwise each counter and histogram has one more series, which is not used.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            runner.run(Replica(options).run())
    except (NoCluster, CantListen) as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
