"""One of two replicas of the operator for the seeded incidents: `python -m docs.pictures.render.replica`.

It is the operator of a local run (local/local_operator.py) with what a replica on a cluster has besides: it waits for
a lease that another one holds, sends agents to the leader, and tells of its process and of its calls of the API server.
With `--leak` it keeps memory while it leads, as a program with a fault would.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import ProcessCollector, disable_created_metrics

from trainmaster_operator.cluster.port import ApiError
from trainmaster_operator.control.http_server import ControlServer, Probes, inherited_socket
from trainmaster_operator.control.peer_secrets import KEY_VARIABLE
from trainmaster_operator.local.api_server.store_client import SocketCluster
from trainmaster_operator.runtime.clock import RealClock
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading
from trainmaster_operator.runtime.observability.operator_metrics import Metrics
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings

log = logging.getLogger(__name__)

NAMESPACE = "trainmaster-system"
LEAK_EVERY_S = 0.5
_CALLS = ("list", "get", "create", "update", "update_status", "patch", "apply", "delete", "resize", "evict")


class CountedCluster(SocketCluster):
    """The store as an API server: its calls are counted, as those of a cluster are."""

    def __init__(self, path: Path, called: Callable[[str, str, float, int], None]) -> None:
        super().__init__(path)
        for verb in _CALLS:
            setattr(self, verb, self._counted(verb, getattr(self, verb), called))

    @staticmethod
    def _counted(
        verb: str, call: Callable[..., Awaitable[Any]], called: Callable[[str, str, float, int], None]
    ) -> Callable[..., Awaitable[Any]]:
        async def counted(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            code = 201 if verb == "create" else 200
            try:
                return await call(*given, **named)
            except ApiError as error:
                code = error.code
                raise
            finally:
                kind = named.get("kind") or (given[0] if verb not in ("resize", "evict") else "Pod")
                called(verb, kind, time.monotonic() - began, code)

        return counted


class Replica:
    def __init__(self, options: argparse.Namespace) -> None:
        metrics = Metrics()
        self._cluster = CountedCluster(options.store, metrics.called)
        address = options.control_url.removeprefix("http://")
        settings = Settings(
            operator_url=options.agents_url or options.control_url,
            identity=options.identity,
            extra_env=options.extra_env,
            # Longer than a cluster's: this machine may be busy with other things.
            lease=LeaseSettings(
                NAMESPACE, duration_s=40.0, renew_deadline_s=25.0, retry_s=4.0, watch=True, address=address
            ),
        )
        key = bytes.fromhex(os.environ.pop(KEY_VARIABLE, ""))
        if key:
            settings = replace(settings, peer_key=lambda: key)
        chance = random.Random(os.urandom(16))
        self._operator = Operator(self._cluster, RealClock(), chance, settings, metrics=metrics)
        ProcessCollector(registry=metrics.registry)
        self._fd: int = options.control_fd
        self._leak_bytes = int(options.leak * LEAK_EVERY_S)
        self._kept: list[bytes] = []

    async def run(self) -> None:
        operator = self._operator
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, operator.stop)
        probes = Probes(lambda: operator.ready, operator.render_metrics)
        count = operator.metrics.channel_requests.labels
        server = ControlServer(operator.fleet, probes, leader=self._leader, counted=lambda result: count(result).inc())
        await server.start(inherited_socket(self._fd))
        tasks = [asyncio.create_task(operator.lag.run())]
        if self._leak_bytes:
            tasks.append(asyncio.create_task(self._leak()))
        try:
            await operator.run()
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            await server.stop()
            await self._cluster.close()

    def _leader(self) -> str | None:
        leader = self._operator.leader
        if leader.leading:
            return None
        address = getattr(leader, "rival_address", "")
        return f"http://{address}" if address else ""

    async def _leak(self) -> None:
        while True:
            await asyncio.sleep(LEAK_EVERY_S)
            if self._operator.leader.leading:
                self._kept.append(b"\1" * self._leak_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--store", type=Path, required=True, help="unix socket of the store")
    add("--control-fd", type=int, required=True, help="inherited listening socket for agents and scrapes")
    add("--control-url", required=True, help="the address of that socket")
    add("--agents-url", default="", help="where agents ask first (default: as --control-url)")
    add("--identity", required=True, help="the name of this replica's pod")
    add("--extra-env", type=json.loads, default={}, help="JSON object: variables for every pod")
    add("--leak", type=float, default=0.0, metavar="BYTES", help="that are kept in each second of leading")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    disable_created_metrics()  # type: ignore[no-untyped-call]

    async def run() -> None:
        await Replica(options).run()

    try:
        asyncio.run(run())
    except NotLeading as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
