"""The settings of an operator and their defaults: on a cluster, in a local run and in the simulation.

What the command line of the operator on a cluster sets is in operator_options.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster_operator.control.fleet import FleetSettings
from trainmaster_operator.manifests.pod_defaults import PodDefaults
from trainmaster_operator.runtime.leader.lease import LeaseSettings
from trainmaster_operator.runtime.observability.job_metrics_page import FINISHED_S


@dataclass(frozen=True)
class Settings:
    """Settings of the operator. Times are in seconds."""

    operator_url: str
    identity: str
    extra_env: dict[str, str] = field(default_factory=dict)  # Environment variables for every pod.
    # Everything that pods get. None: only the two fields above, for processes on one machine.
    pods: PodDefaults | None = None
    ca_bundle: Callable[[], str] | None = None  # PEM certificates by which agents recognise the operator. None: no TLS.
    # The key from which the secrets between agents are derived. None: no secrets.
    peer_key: Callable[[], bytes] | None = None
    judge_nodes: bool = False  # New pods avoid nodes that failed jobs recently.
    taint_nodes: bool = False  # Such nodes are tainted, if the operator is given `nodes`.
    list_nodes: bool = False  # Jobs that wait for places notice new nodes, if the operator is given `nodes`.
    namespace: str | None = None  # None: all namespaces.
    workers: int = 8  # Maximum number of jobs that are handled at the same time.
    resync_s: float = 600.0  # Seconds after which every job is looked at again, in case events were lost.
    # Seconds between lists of `jobs`, which a watch of somebody else feeds. None: the cache watches itself.
    relist_jobs_s: float | None = None
    job_metrics: bool = True  # Export metrics of single jobs.
    finished_metrics_s: float = FINISHED_S  # Seconds after its end for which a job has metrics.
    progress_interval_s: float = 0.5
    progress_rate: float = 20.0
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
