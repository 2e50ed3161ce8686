"""A dry run of a job and one of its pods on a cluster.

The API server validates and admits both as if they were created, with all its webhooks, quotas and policies, and names
each unknown field of the pod template.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.validation import unknown_pod_fields
from trainmaster_operator.cli.cluster_connection import Target, not_installed, one_line
from trainmaster_operator.cli.job_files.job_document import Document, refuse
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cluster.kubernetes_errors import FULL_QUOTA
from trainmaster_operator.cluster.port import (
    JOB,
    POD,
    AlreadyExists,
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    Object,
)
from trainmaster_operator.manifests import PodDefaults, PodSecurity, fill_pod, render_pod

_ROLE = "worker"
# A user who may only write jobs cannot read the operator's settings. The user of the pods decides whether OpenShift
# accepts them, so no user is set: OpenShift then chooses one, and other clusters use that of the image.
_DEFAULTS = PodDefaults(
    "https://trainmaster-operator.trainmaster-system.svc:8443",
    in_cluster=True,
    security=PodSecurity(None, None, None),
)
_FILLED_UP = replace(_DEFAULTS, security=PodSecurity(None, None, None, restrict=True))
_RESTRICTED = ("violates PodSecurity", "security context constraint")
_NO_DRY_RUN = "does not support dry run"
_NO_RIGHT = "cannot create resource"


async def try_job(target: Target, document: Document, job: Object) -> None:
    """Let the API server check `job`, which has a name and a namespace, and its first pod, without storing them.

    What says nothing about the job itself is a line on standard error: a full quota, no right to create pods, a webhook
    that does not answer. Raise Refusal in the cluster's words, with the lines of the file where they name fields. An
    existing job or pod with the same name is no reason to refuse this one.
    """
    assert target.try_create is not None
    try:
        with suppress(AlreadyExists):  # AlreadyExists is raised only for what is valid and admitted.
            await target.try_create(JOB, job)
    except Invalid as error:
        if _NO_DRY_RUN not in str(error):
            raise Refusal(f"{document.file}: the cluster refuses the job: {one_line(error)}") from None
        _note(f"{document.file}: the cluster did not check the job: {one_line(error)}")
    except NotFound as error:
        if "namespaces" in str(error):
            raise Refusal(f"namespace {job['metadata']['namespace']}: doesn't exist") from None
        raise not_installed(target) from None
    try:
        with suppress(AlreadyExists):
            await target.try_create(POD, first_pod(job))
    except (Invalid, Forbidden) as error:
        if any(words in str(error) for words in _RESTRICTED) and await _is_taken(target, first_pod(job, _FILLED_UP)):
            return _note(
                f"{document.file}: the namespace restricts pods: those of this job can be created only if the operator "
                f"fills in what the template does not say (jobPods.restrictUserImages of the chart): {one_line(error)}"
            )
        _judge(document, job, error)


async def _is_taken(target: Target, pod: Object) -> bool:
    assert target.try_create is not None
    try:
        await target.try_create(POD, pod)
    except AlreadyExists:
        return True
    except ApiError:
        return False
    return True


def first_pod(job: Object, defaults: PodDefaults = _DEFAULTS) -> Object:
    """Return the pod that the operator would create first. It has no owner, because the job is not stored."""
    meta = {**job["metadata"], "uid": "dry-run"}
    model = DistributedTrainingJob.model_validate({**job, "metadata": meta})
    pod = fill_pod(render_pod(model, _ROLE, defaults), 0, 0, defaults)
    return {**pod, "metadata": {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}}


def _judge(document: Document, job: Object, error: Invalid | Forbidden) -> None:
    words = one_line(error)
    if FULL_QUOTA in words:
        return _note(f"{document.file}: its pods cannot start now: {words}")
    if _NO_DRY_RUN in words or (isinstance(error, Forbidden) and _NO_RIGHT in words):
        refuse(document, unknown_pod_fields.problems(job["spec"].get("workers", {}).get("template")))
        return _note(f"{document.file}: the cluster did not check its pods: {words}")
    refuse(document, unknown_pod_fields.problems_in(words))
    raise Refusal(f"{document.file}: the cluster refuses its pods: {words}")


def _note(words: str) -> None:
    sys.stderr.write(f"trainmaster: {words}\n")
