"""What a run keeps from its beginning to its end: the spec, and the pod as it was rendered then.

It is stored as a ControllerRevision of the job, whose name says what it holds: an operator that would make the same now
need not ask for it. The live fields of the spec (see `api.edits`) are stored too, for people; they are no part of the
name, and nobody reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.spec_edits import effective_spec, frozen, pod_with_resources, pod_without_resources
from trainmaster_operator.manifests import object_names
from trainmaster_operator.manifests.keyed_lists import Object, joined

API_VERSION = "apps/v1"
KIND = "ControllerRevision"
HASH_LENGTH = 10
MOST_BYTES = 1_000_000
"""Of spec and pod as JSON. An API server's storage takes 1.5 MiB."""

Render = Callable[[DistributedTrainingJob], Object]
"""Makes what all pods of a job have in common (`pods.render_pod`), with this operator's images."""


class TooLarge(Exception):
    """A job that is too large to be kept."""


@dataclass(frozen=True)
class Revision:
    """`spec`: as the job had it. `pod`: with placeholders."""

    name: str
    spec: Object
    pod: Object


@dataclass(frozen=True)
class Run:
    """What is obeyed now: what the run keeps, with the live fields of the job's spec. `waiting`: paths of the edited
    fields that the next run will have."""

    name: str
    spec: JobSpec
    pod: Object
    waiting: tuple[str, ...] = ()


def revision_of(job: DistributedTrainingJob, spec: Object, render: Render, collisions: int = 0) -> Revision:
    """Return the revision of a run that begins now. `spec`: the job's, as it is stored. `collisions`: how many of its
    names are taken by something else."""
    pod = render(job)
    digest = hashlib.sha256(_encoded([frozen(spec), _frozen_pod(pod)])).hexdigest()[:HASH_LENGTH]
    suffix = f"-{collisions}" if collisions else ""
    return Revision(f"{job.metadata.name}-{digest}{suffix}", spec, pod)


def build_revision(job: DistributedTrainingJob, revision: Revision) -> Object:
    """Return the object. Raises TooLarge."""
    data = {"spec": revision.spec, "pod": revision.pod}
    size = len(_encoded(data))
    if size > MOST_BYTES:
        raise TooLarge(
            f"spec takes {size / 1e6:.1f} MB together with the pod that is made from it, and {MOST_BYTES / 1e6:g} MB "
            "can be kept for a run: put long texts of workers.template into the image, a ConfigMap or a volume"
        )
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": revision.name,
            "namespace": job.metadata.namespace,
            "labels": {object_names.JOB: job.metadata.name},
            "ownerReferences": [object_names.owner(job)],
        },
        "revision": job.metadata.generation,
        "data": data,
    }


def read_revision(found: Object) -> Revision:
    """Raises KeyError when it is none of ours."""
    data = found["data"]
    return Revision(found["metadata"]["name"], data["spec"], data["pod"])


def same_run(a: Revision, b: Revision) -> bool:
    """Whether both keep the same, whatever their live fields are."""
    return frozen(a.spec) == frozen(b.spec) and _frozen_pod(a.pod) == _frozen_pod(b.pod)


def begun(job: DistributedTrainingJob, revision: Revision) -> Run:
    """Return what a run obeys whose revision is what the job and this operator would make now."""
    return Run(revision.name, job.spec, revision.pod)


def effective(kept: Revision, job: DistributedTrainingJob, spec: Object, render: Render, size: int) -> Run:
    """Return what a run obeys that keeps `kept`, whatever was edited or upgraded since. `spec`: the job's, as it is
    stored. `size`: how many pods have ranks now. Raises ValidationError when what is kept can't be understood."""
    now, waiting = effective_spec(kept.spec, spec, size)
    live = render(job.model_copy(update={"spec": now}))
    return Run(kept.name, now, _with_live_resources(kept.pod, live), waiting)


def _with_live_resources(pod: Object, live: Object) -> Object:
    """The kept pod with CPU and memory as the other has them, and with what tells the agent of its cores."""
    spec = pod_with_resources(pod["spec"], live["spec"])
    main, *others = spec["containers"]
    cores = [variable for variable in live["spec"]["containers"][0]["env"] if _tells_cores(variable)]
    main = {**main, "env": joined((v for v in main["env"] if not _tells_cores(v)), cores)}
    return {**pod, "spec": {**spec, "containers": [main, *others]}}


def _frozen_pod(pod: Object) -> Object:
    spec = pod_without_resources(pod["spec"])
    main, *others = spec["containers"]
    main = {**main, "env": [variable for variable in main["env"] if not _tells_cores(variable)]}
    return {**pod, "spec": {**spec, "containers": [main, *others]}}


def _tells_cores(variable: Object) -> bool:
    return bool(variable["name"] == environment.CPU_MILLIS)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
