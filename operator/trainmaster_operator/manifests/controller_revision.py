"""What a run keeps from its beginning to its end: the spec, and the pod as it was rendered then.

It is stored as a ControllerRevision of the job, whose name is derived from its content: an operator that would create
the same now need not read it. The fields of the spec that apply at once (see `api.spec_edits`) are stored too, for
people; they are not part of the name and no code reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.contract.wire import environment
from trainmaster_operator.api.job_spec import DistributedTrainingJob, JobSpec
from trainmaster_operator.api.resizable_resources import pod_with_resources, pod_without_resources
from trainmaster_operator.api.spec_edits import effective_spec, frozen
from trainmaster_operator.manifests import object_names
from trainmaster_operator.manifests.keyed_lists import Object, joined

API_VERSION = "apps/v1"
KIND = "ControllerRevision"
HASH_LENGTH = 10
MOST_BYTES = 1_000_000
"""Maximum size of spec and pod as JSON, in bytes. The storage of an API server takes 1.5 MiB."""

Render = Callable[[DistributedTrainingJob], Object]
"""Returns the common part of all pods of a job (`pods.render_pod`), with this operator's images."""


class TooLarge(Exception):
    """The job is too large to be stored as a revision."""


@dataclass(frozen=True)
class Revision:
    """The content of a revision. `spec`: the spec of the job at that time. `pod`: with placeholders."""

    name: str
    spec: Object
    pod: Object


@dataclass(frozen=True)
class Run:
    """What a job uses now: the revision of its run, with the fields of the job's spec that apply at once. `waiting`:
    paths of the edited fields that wait for the next run."""

    name: str
    spec: JobSpec
    pod: Object
    waiting: tuple[str, ...] = ()


def revision_of(job: DistributedTrainingJob, spec: Object, render: Render, collisions: int = 0) -> Revision:
    """Return the revision of a run that begins now. `spec`: the job's spec as it is stored. `collisions`: how many
    of its names other objects have."""
    pod = render(job)
    digest = hashlib.sha256(_encoded([frozen(spec), _frozen_pod(pod)])).hexdigest()[:HASH_LENGTH]
    suffix = f"-{collisions}" if collisions else ""
    return Revision(f"{job.metadata.name}-{digest}{suffix}", spec, pod)


def build_revision(job: DistributedTrainingJob, revision: Revision) -> Object:
    """Return the ControllerRevision object. Raise TooLarge if it does not fit."""
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
    """Return the revision in an object. Raise KeyError if the object has other content."""
    data = found["data"]
    return Revision(found["metadata"]["name"], data["spec"], data["pod"])


def same_run(a: Revision, b: Revision) -> bool:
    """Return whether both have the same content, apart from the fields that apply at once."""
    return frozen(a.spec) == frozen(b.spec) and _frozen_pod(a.pod) == _frozen_pod(b.pod)


def begun(job: DistributedTrainingJob, revision: Revision) -> Run:
    """Return the run of a revision that the job and this operator would create now."""
    return Run(revision.name, job.spec, revision.pod)


def effective(kept: Revision, job: DistributedTrainingJob, spec: Object, render: Render, size: int) -> Run:
    """Return the run of revision `kept`, whatever was edited or upgraded since. `spec`: the job's spec as it is
    stored. `size`: number of pods with ranks now. Raise ValidationError if the revision is invalid here."""
    now, waiting = effective_spec(kept.spec, spec, size)
    live = render(job.model_copy(update={"spec": now}))
    return Run(kept.name, now, _with_live_resources(kept.pod, live), waiting)


def _with_live_resources(pod: Object, live: Object) -> Object:
    """Return the kept pod with the CPU and memory of `live`, and with its variable for the agent's cores."""
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
