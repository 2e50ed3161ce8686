"""Small facts about Kubernetes objects as plain dicts: copies, merge patches, selectors, timestamps."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from trainmaster_operator.cluster.port import KINDS, Labels, Object

DEFAULT_GRACE_S = 30


def event_time(event: Object) -> str:
    """Return when an Event was last told, as the API server writes it; "" if it has no time."""
    created = event["metadata"].get("creationTimestamp")
    return str(event.get("lastTimestamp") or event.get("eventTime") or created or "")


def copied(value: Any) -> Any:
    """A deep copy of a JSON value: several times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [copied(v) for v in value]
    return value


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null removes, anything else replaces. Shares what it doesn't change."""
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
    """Server-side apply of `wanted` by one manager whose last apply was `before`: objects merge, what only `before`
    has is taken away, lists are replaced as wholes. Shares what it doesn't change."""
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
    if not labels:
        return True
    have = obj["metadata"].get("labels") or {}
    return all(key in have and (value is None or have[key] == value) for key, value in labels.items())


def timestamp(seconds: float) -> str:
    """Unix seconds as metav1.Time, which has whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """Unix seconds of a metav1.Time or metav1.MicroTime."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def finalizers(obj: Object) -> list[str]:
    return obj["metadata"].get("finalizers") or []


def owners(obj: Object) -> list[Object]:
    return obj["metadata"].get("ownerReferences") or []


def payload(obj: Object) -> Object:
    """What a generation counts: all but metadata and status."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


def bookmark(kind: str, resource_version: str) -> Object:
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {"resourceVersion": resource_version},
    }


def grace_s(pod: Object, wanted_s: int | None) -> int:
    """As a real one: a Pod that isn't on a node, or has ended, has no kubelet to wait for."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    if wanted_s is not None:
        return wanted_s if wanted_s >= 0 else 1
    return int(pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))


def disrupted(pod: Object, at: float) -> Object | None:
    """The Pod with the mark of an eviction, or None when it has one."""
    conditions = pod["status"].get("conditions") or []
    if any((c["type"], c["status"]) == ("DisruptionTarget", "True") for c in conditions):
        return None
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": timestamp(at),
    }
    others = [c for c in conditions if c["type"] != "DisruptionTarget"]
    return {**pod, "status": {**pod["status"], "conditions": [*others, condition]}}
