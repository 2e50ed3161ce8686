"""What must exist before a job's first pod: the certificates in the namespace, the job's Service, and a suitable
storage claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from trainmaster.contract.wire import Cause
from trainmaster_operator.cluster.port import CLAIM, CONFIG_MAP, ApiError, Cluster, NotFound
from trainmaster_operator.manifests.ca_config_map import build_ca_bundle
from trainmaster_operator.manifests.claim_access_modes import claim_problem, serves_one_node
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.cache.informer import JobKey
from trainmaster_operator.runtime.job_pass.pod_dns_names import DnsService
from trainmaster_operator.runtime.job_pass.refused_pod_retries import Refused
from trainmaster_operator.runtime.lasting_api_failures import attempting
from trainmaster_operator.runtime.leader.lease import Leadership

log = logging.getLogger(__name__)


class Surroundings:
    """Creates and checks the objects that the pods of jobs need."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leadership,
        dns: DnsService,
        defaults: PodDefaults,
        ca_bundle: Callable[[], str] | None,
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._dns = dns
        self._in_cluster = defaults.in_cluster
        self._ca_bundle = ca_bundle
        self._bundles: dict[str, str] = {}  # The bundle that each namespace has.
        self._reminded: set[str] = set()  # Namespaces that this leader has checked once.
        self._ready: dict[JobKey, tuple[str, str]] = {}  # Uid and revision of jobs whose pods may be created.
        self._one_node: dict[JobKey, str] = {}  # Names of claims that only one node can mount.

    async def prepare(self, record: JobRecord) -> None:
        """Create what the job's pods need. Raise Refused and ApiError."""
        # This is done each time: the namespace may have been deleted and created again, and no pod starts without the
        # bundle.
        self._bundles.pop(record.key.namespace, None)
        await self._bundle(record.key.namespace)
        run = (record.uid, record.status.revision)
        if self._ready.get(record.key) == run:
            return
        known = await self._claim(record)
        await self._dns.prepare(record)
        if known:
            self._ready[record.key] = run

    def claim_of_one_node(self, key: JobKey) -> str:
        """Return the name of the job's claim if only one node can mount it, else "". It is known after `prepare` was
        called."""
        return self._one_node.get(key, "")

    async def tell_bundle(self, namespaces: Iterable[str]) -> None:
        """Write the operator's certificates into these namespaces. A failure is logged."""
        for namespace in namespaces:
            try:
                await self._bundle(namespace)
            except ApiError as error:
                log.warning("namespace %s: the operator's certificates could not be written: %s", namespace, error)

    async def remind(self, namespace: str) -> None:
        """Write the certificates into a namespace once per leader, because the previous leader may have died after
        it made new ones."""
        if self._ca_bundle is not None and namespace not in self._reminded:
            self._reminded.add(namespace)
            await self.tell_bundle([namespace])

    def leads_from_now(self) -> None:
        self._reminded.clear()
        self._bundles.clear()

    def forget(self, key: JobKey) -> None:
        self._ready.pop(key, None)
        self._dns.forget(key)
        self._one_node.pop(key, None)

    async def _bundle(self, namespace: str) -> None:
        if self._ca_bundle is None:
            return
        bundle = self._ca_bundle()
        if self._bundles.get(namespace) == bundle:
            return
        self._leader.check()
        body = build_ca_bundle(namespace, bundle)
        with attempting(f"ConfigMap {body['metadata']['name']} can't be written"):
            await self._cluster.apply(CONFIG_MAP, body)
        self._bundles[namespace] = bundle

    async def _claim(self, record: JobRecord) -> bool:
        """Return whether everything is known about the job's claim. The scheduler reports a claim that does not
        exist or is not bound. Raise Refused for a claim that cannot work."""
        assert record.job is not None
        spec = record.job.spec
        volume = spec.checkpoint.volume
        self._one_node.pop(record.key, None)
        if not self._in_cluster or volume is None or volume.claim is None:
            return True
        try:
            with attempting(f"PersistentVolumeClaim {volume.claim} can't be read"):
                claim = await self._cluster.get(CLAIM, record.key.namespace, volume.claim)
        except NotFound:
            return False
        pods = spec.workers.replicas + spec.workers.spares
        problem = claim_problem(claim, pods)
        if problem:
            raise Refused(Cause.CONFIG_ERROR.value, problem, fatal=True)
        if pods > 1 and serves_one_node(claim):
            self._one_node[record.key] = volume.claim
        return True
