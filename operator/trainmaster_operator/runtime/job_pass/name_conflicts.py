"""Objects whose names a job needs and that belong to something else, or to an earlier job of the same name."""

from __future__ import annotations

from trainmaster_operator.cluster.port import JOB, Object
from trainmaster_operator.runtime.cache.cache_records import JobRecord
from trainmaster_operator.runtime.job_pass.refused_pod_retries import NAME_IN_USE, NAME_TAKEN, Refused


def check_owner(kind: str, found: Object, record: JobRecord) -> None:
    """Raise Refused unless this job controls the object that has the name it needs."""
    name = found["metadata"]["name"]
    owner = next((o for o in found["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
    if owner is not None and owner.get("uid") == record.uid:
        return
    if owner is not None and (owner.get("kind"), owner.get("name")) == (JOB, record.key.name):
        raise Refused(NAME_IN_USE, f"{kind} {name} of a previous job with this name still exists")
    raise Refused(NAME_TAKEN, f"{kind} {name} exists and belongs to something else: delete it, or rename the job")
