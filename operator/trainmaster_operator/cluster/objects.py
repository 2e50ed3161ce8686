"""Functions on Kubernetes objects as plain dicts: copies, merge patches, selectors, timestamps."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from trainmaster_operator.cluster.port import KINDS, Labels, Object


def event_time(event: Object) -> str:
    """Return the time at which an Event last occurred, as the API server writes it; "" if it has no time."""
    created = event["metadata"].get("creationTimestamp")
    return str(event.get("lastTimestamp") or event.get("eventTime") or created or "")


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value. It is several times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [copied(v) for v in value]
    return value


def merged(target: Any, patch: Any) -> Any:
    """Return `target` with a merge patch of RFC 7386 applied: objects merge, null removes, anything else replaces.
    Unchanged parts are shared with `target`."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def applied(live: Any, wanted: Any, before: Any) -> Any:
    """Return the result of a server-side apply of `wanted` by one manager whose last apply was `before`: objects
    merge, fields that only `before` has are removed, lists are replaced as a whole. Unchanged parts are shared with
    `live`."""
    if not isinstance(wanted, dict):
        return wanted
    result = dict(live) if isinstance(live, dict) else {}
    known = before if isinstance(before, dict) else {}
    for key in known:
        if key in wanted or key not in result:
            continue
        if isinstance(known[key], dict) and isinstance(result[key], dict):
            result[key] = applied(result[key], {}, known[key])
        if not isinstance(known[key], dict) or not result[key]:
            del result[key]
    for key, value in wanted.items():
        result[key] = applied(result.get(key), value, known.get(key))
    return result


def matches(obj: Object, labels: Labels | None) -> bool:
    """Return whether an object has the labels of a selector."""
    if not labels:
        return True
    have = obj["metadata"].get("labels") or {}
    return all(key in have and (value is None or have[key] == value) for key, value in labels.items())


def timestamp(seconds: float) -> str:
    """Return seconds since 1970 as metav1.Time, which has whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """Return a metav1.Time or metav1.MicroTime in seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def finalizers(obj: Object) -> list[str]:
    return obj["metadata"].get("finalizers") or []


def owners(obj: Object) -> list[Object]:
    return obj["metadata"].get("ownerReferences") or []


def payload(obj: Object) -> Object:
    """Return what a generation counts: everything except metadata and status."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def bookmark(kind: str, resource_version: str) -> Object:
    """Return the object of a BOOKMARK event."""
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"resourceVersion": resource_version},
    }
