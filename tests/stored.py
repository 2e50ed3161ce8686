"""A job's status with the flat fields of `JobState`, for tests that look at a stored one."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.planning.status_mapping import read_status


def flat_status(status: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a stored status says as JSON values: {} for none. restarts has `total` as well."""
    if not status:
        return {}
    state = read_status(status)
    flat: dict[str, Any] = state.model_dump(mode="json", exclude_none=True)
    flat["restarts"]["total"] = state.restarts.total
    return flat
