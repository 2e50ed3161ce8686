"""`trainmaster migrate`: a manifest with the field names of this version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from trainmaster_operator.api.api_group import JOB_KIND
from trainmaster_operator.api.validation import former_spelling
from trainmaster_operator.api.validation.problem import shown
from trainmaster_operator.cli.job_files import job_document
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.planning.lifecycle.jobs_of_earlier_versions import former_status

_APPLIED = (
    r"kubectl get dtj {name} -o jsonpath='{{.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}}'"
)


def migrate(file: Path) -> int:
    """Print the manifest to standard output, and what was changed to standard error. Return 0. Raise Refusal."""
    found = job_document.load(file)
    kind = found.value.get("kind") if isinstance(found.value, dict) else found.value
    if kind != JOB_KIND:
        raise Refusal(f"{file}: a {JOB_KIND} is expected, not {shown(kind)}")
    if former_status(found.value.get("status")):
        _warn_of_dropped_fields(file, found.value)
    value, changes = former_spelling.migrated(found.value)
    if not changes:
        sys.stdout.write(file.read_text(encoding="utf-8"))
        sys.stderr.write(f"{file}: nothing has to be changed\n")
        return 0
    sys.stdout.write(job_document.dump(value))
    for change in changes:
        sys.stderr.write(f"{file}:{found.line(change.path)}: {change}\n")
    sys.stderr.write(f"{file}: comments are not kept\n")
    return 0


def _warn_of_dropped_fields(file: Path, job: dict[str, Any]) -> None:
    """Warn about a job that was read from a cluster: it may lack the fields to migrate, because an API server
    neither shows nor stores fields that are not in its present definition."""
    meta = job.get("metadata")
    name = meta.get("name", "NAME") if isinstance(meta, dict) else "NAME"
    sys.stderr.write(
        f"{file}: this was read from a cluster, which drops fields of the former spelling once its CRD is upgraded. "
        f"Migrate the manifest that was applied instead: {_APPLIED.format(name=name)}\n"
    )
