"""Removes the operator's taint from all nodes: `python -m trainmaster_operator.runtime.nodes.remove_taints`.

The chart runs it before an uninstall, while the right to nodes still exists. It never stops an uninstall: it logs the
taints that it could not remove.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster
from trainmaster_operator.cluster.kubernetes_nodes import KubernetesNodes
from trainmaster_operator.cluster.port import ApiError
from trainmaster_operator.runtime.nodes.node_taints import KEY, remove_all

log = logging.getLogger(__name__)


async def _uninstall(kubeconfig: str | None) -> int:
    cluster = await KubernetesCluster.connect(kubeconfig)
    try:
        had, left = await remove_all(KubernetesNodes(cluster.connection))
    except ApiError as error:
        log.error("the taint %s may still be on nodes: %s", KEY, error)
        return 0
    finally:
        await cluster.close()
    log.info("the taint %s was removed from %d of %d nodes that had it", KEY, len(had) - len(left), len(had))
    return 0


def main() -> int:
    """Remove the taint from all nodes. Return 0, also if some keep it; 2 if there is no cluster."""
    parser = argparse.ArgumentParser(description="Take the taint of suspect nodes from all nodes of the cluster.")
    parser.add_argument("--kubeconfig", metavar="FILE", help="(default: the pod's own service account)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return asyncio.run(_uninstall(options.kubeconfig))
    except NoCluster as error:
        log.error("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
