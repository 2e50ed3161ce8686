"""The port `Cluster`: everything that the operator asks of an API server.

Objects are plain dicts in Kubernetes' JSON form. Objects from `list` and `watch` may be shared with other code: read
them and never change them in place (the rule of an informer's cache). Objects from other methods belong to the caller.
Every method may raise `Unavailable`; after that, a write may or may not have taken effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

Object = dict[str, Any]
Labels = Mapping[str, str | None]
"""A label selector: every label must have the given value; with None, the label must exist with any value."""


class Kind(NamedTuple):
    """How the API server serves a kind of object."""

    api_version: str
    plural: str
    # True if it has a status subresource: `update` ignores status, `update_status` ignores everything else.
    has_status: bool


JOB = "DistributedTrainingJob"
POD = "Pod"
SERVICE = "Service"
LEASE = "Lease"
EVENT = "Event"
CONFIG_MAP = "ConfigMap"
SECRET = "Secret"
CLAIM = "PersistentVolumeClaim"
REVISION = "ControllerRevision"

KINDS: dict[str, Kind] = {
    JOB: Kind("trainmaster.dev/v1alpha1", "distributedtrainingjobs", True),
    POD: Kind("v1", "pods", True),
    SERVICE: Kind("v1", "services", True),
    LEASE: Kind("coordination.k8s.io/v1", "leases", False),
    EVENT: Kind("v1", "events", False),
    CONFIG_MAP: Kind("v1", "configmaps", False),
    SECRET: Kind("v1", "secrets", False),
    CLAIM: Kind("v1", "persistentvolumeclaims", True),
    REVISION: Kind("apps/v1", "controllerrevisions", False),
}

ADDED: Literal["ADDED"] = "ADDED"
MODIFIED: Literal["MODIFIED"] = "MODIFIED"
DELETED: Literal["DELETED"] = "DELETED"
BOOKMARK: Literal["BOOKMARK"] = "BOOKMARK"
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event of a watch. BOOKMARK: nothing changed up to `object.metadata.resourceVersion`. DELETED contains the
    last state, with the resourceVersion of the deletion. An object that no longer matches the label selector is
    DELETED too."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a list."""

    items: list[Object]
    resource_version: str  # The version from which to watch.


@dataclass(frozen=True, slots=True)
class TokenReview:
    """The account that the API server recognises by a token. `pod` and `pod_uid` are empty unless the token is bound
    to a pod."""

    username: str
    namespace: str
    pod: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Scraper:
    """The account that the API server recognises by a token, and whether it may get what it asks for."""

    username: str
    allowed: bool


class ApiError(Exception):
    """A refusal by the API server, in its own words."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    said: str = ""  # The server's reason if it differs from that of the class: InternalError, Timeout, ...
    retry_after_s: float = 0.0  # Minimum number of seconds before the same call is made again, as the server asks.
    attempt: str = ""  # What could not be done, for people; "" if the caller has not named it.


class Invalid(ApiError):
    """The object is malformed, or a field cannot be changed. Never retry it unchanged."""

    code = 422
    reason = "Invalid"


class Forbidden(ApiError):
    """Refused by quota, LimitRange, pod security or RBAC."""

    code = 403
    reason = "Forbidden"


class NotFound(ApiError):
    """The object, or its namespace, does not exist."""

    code = 404
    reason = "NotFound"


class Conflict(ApiError):
    """The resourceVersion or uid is not the current one: read again and decide again."""

    code = 409
    reason = "Conflict"


class AlreadyExists(ApiError):
    """An object with this name exists."""

    code = 409
    reason = "AlreadyExists"


class Gone(ApiError):
    """The watch cannot continue from this resourceVersion: list again."""

    code = 410
    reason = "Expired"


class TooManyRequests(ApiError):
    """The call was throttled, or a disruption budget forbids an eviction now: try again later."""

    code = 429
    reason = "TooManyRequests"


class Unavailable(ApiError):
    """There was no answer, or the server has a problem. A write may have taken effect."""

    code = 503
    reason = "ServiceUnavailable"


ERRORS: dict[str, type[ApiError]] = {
    error.reason: error
    for error in (
        ApiError,
        Invalid,
        Forbidden,
        NotFound,
        Conflict,
        AlreadyExists,
        Gone,
        TooManyRequests,
        Unavailable,
    )
}


class Cluster(Protocol):
    """Access to an API server. Kinds are the keys of KINDS. All kinds are namespaced; `namespace=None` lists and
    watches all namespaces."""

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        """Return a consistent list, ordered by namespace and name."""
        ...

    def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Yield changes after `resource_version`, in order, until the server ends the stream; then watch again from
        the last resourceVersion seen. Raise Gone if the history does not reach back so far: list again."""
        ...

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        """Return an object. Raise NotFound."""
        ...

    async def create(self, kind: str, obj: Object) -> Object:
        """Create an object and return it as stored. A status in it is ignored. Raise AlreadyExists, Invalid,
        Forbidden."""
        ...

    async def update(self, kind: str, obj: Object) -> Object:
        """Replace everything except the status. Raise Conflict unless metadata.resourceVersion is the current one
        (Invalid without one), NotFound, Invalid. For a Lease, Service or Event that is gone, Conflict is raised
        instead of NotFound; without the uid in `obj` it would be created again."""
        ...

    async def update_status(self, kind: str, obj: Object) -> Object:
        """Replace the status and nothing else (for a Pod, a real server also takes labels and annotations: change
        none). Raise as `update` does."""
        ...

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        """Apply a JSON merge patch (RFC 7386) to everything except the status. Raise Conflict if a given
        `resource_version` is not the current one, NotFound, Invalid."""
        ...

    async def apply(self, kind: str, obj: Object) -> Object:
        """Apply an object on the server as one manager, forced: create it, or change the fields in `obj`, remove
        those that only the last `apply` had, and leave all others. The status is left out. Raise Conflict if a uid
        or resourceVersion in `obj` is not the current one, Invalid, Forbidden."""
        ...

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete an object; its dependents are deleted in the background. A Pod on a node gets a deletionTimestamp
        and vanishes when its kubelet has ended it, or at once with `grace_s=0`. Raise NotFound, and Conflict if a
        given `uid` is not that of the object."""
        ...

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        """Change requests and limits of a Pod's containers, by their names; other containers keep theirs. Raise
        NotFound (no such Pod, or the server does not support it), Invalid (also if `uid` is not that of the Pod),
        Forbidden."""
        ...

    async def evict(self, namespace: str, name: str) -> None:
        """Delete a Pod as a drain does. Raise TooManyRequests if a disruption budget forbids it, and NotFound."""
        ...

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        """Return the Events about one object, in any order. They are hints for people: any of them may be missing."""
        ...

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        """Return who owns this ServiceAccount token for `audience`; None if the server does not recognise it. Raise
        Unavailable if the server cannot tell."""
        ...
