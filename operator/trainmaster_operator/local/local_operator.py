"""The operator of a local run: `python -m trainmaster_operator.local.local_operator`, a child of `trainmaster run`.

It may be killed at any time: the job is in its parent's store, and the listening socket of the control channel belongs
to the parent too, so requests of agents wait for the next operator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path

from trainmaster_operator.control.http_server import ControlServer, Probes, inherited_socket
from trainmaster_operator.control.peer_secrets import KEY_VARIABLE
from trainmaster_operator.local import process_tree
from trainmaster_operator.local.api_server.store_client import SocketCluster
from trainmaster_operator.runtime.clock import RealClock
from trainmaster_operator.runtime.leader.lease import LeaseSettings, NotLeading
from trainmaster_operator.runtime.operator import Operator
from trainmaster_operator.runtime.operator_settings import Settings

log = logging.getLogger(__name__)

LEASE = LeaseSettings(takeover=True, renew_deadline_s=math.inf)
"""The parent starts an operator only after it has reaped the one before, so the lease has no rival. It does not run out
either: on a busy machine an operator that is only slow would end itself in the middle of a recovery."""


async def serve(store: Path, control_fd: int, settings: Settings) -> None:
    """Run until SIGTERM. Raise NotLeading if another operator has taken the lease."""
    cluster = SocketCluster(store)
    # The seed is drawn here; everything inside gets its randomness injected.
    operator = Operator(cluster, RealClock(), random.Random(os.urandom(16)), settings)
    server = ControlServer(operator.fleet, Probes(lambda: operator.ready, operator.render_metrics))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, operator.stop)
    await server.start(inherited_socket(control_fd))
    try:
        await operator.run()
    finally:
        await server.stop()
        await cluster.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="unix socket of the store")
    parser.add_argument("--control-fd", type=int, required=True, help="inherited listening socket for agents")
    parser.add_argument("--control-url", required=True, help="the address of that socket, as agents see it")
    parser.add_argument("--extra-env", type=json.loads, default={}, help="JSON object: variables for every pod")
    args = parser.parse_args()
    process_tree.hurry()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    settings = Settings(
        operator_url=args.control_url,
        identity=f"local-{os.getpid()}",
        extra_env=args.extra_env,
        lease=LEASE,
    )
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE, ""))
    if key:
        settings = replace(settings, peer_key=lambda: key)
    # What was created at start lives as long as the process, so the garbage collector need not examine it again.
    gc.freeze()
    try:
        asyncio.run(serve(args.store, args.control_fd, settings))
    except NotLeading as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
