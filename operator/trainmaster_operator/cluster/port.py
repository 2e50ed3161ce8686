"""The port `Cluster`: all that the operator asks of an API server.

Objects are plain dicts in Kubernetes' JSON shape. What `list` and `watch` hand out may be shared with others:
read it, never change it in place (the rule of an informer's cache). What the other verbs return is the caller's own.
Every verb may raise `Unavailable`; after one, a write may or may not have taken effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

Object = dict[str, Any]
Labels = Mapping[str, str | None]
"""A label selector: every label must have the given value; with None, the label must be there, whatever its value."""


class Kind(NamedTuple):
    api_version: str
    plural: str
    has_status: bool  # has a status subresource: `update` ignores status, `update_status` ignores the rest


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
    """BOOKMARK: nothing changed up to `object.metadata.resourceVersion`. DELETED carries the last state, and its
    resourceVersion is that of the deletion. An object that leaves the label selector is DELETED too."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Object]
    resource_version: str  # watch from here


@dataclass(frozen=True, slots=True)
class TokenReview:
    """Whom the API server has recognised by a token. `pod` and `pod_uid` are empty unless the token is bound to one."""

    username: str
    namespace: str
    pod: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Scraper:
    """Whom the API server has recognised by a token, and whether they may get what they ask for."""

    username: str
    allowed: bool


LONGEST_RETRY_AFTER_S = 30.0
"""A server, or a proxy before it, may ask for hours. A job is not left alone for so long."""


class ApiError(Exception):
    """A refusal by the API server, in its own words."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    said: str = ""  # the server's reason where it is another one than the class has: InternalError, Timeout, ...
    retry_after_s: float = 0.0  # how long the server asks to wait; 0: it doesn't say
    attempt: str = ""  # what could not be done, for people; "": nobody has said it

    @property
    def wait_s(self) -> float:
        """At least so long the same call is not made again."""
        return min(LONGEST_RETRY_AFTER_S, self.retry_after_s)


class Invalid(ApiError):
    """The object is malformed or a field can't be changed: never retry it unchanged."""

    code = 422
    reason = "Invalid"


FULL_QUOTA = "exceeded quota"
"""What the API server says in a Forbidden for which a ResourceQuota is the reason."""


class Forbidden(ApiError):
    """Refused by quota, LimitRange, pod security or RBAC."""

    code = 403
    reason = "Forbidden"


class NotFound(ApiError):
    code = 404
    reason = "NotFound"


class Conflict(ApiError):
    """The resourceVersion or uid isn't the current one: read again, decide again."""

    code = 409
    reason = "Conflict"


class AlreadyExists(ApiError):
    code = 409
    reason = "AlreadyExists"


class Gone(ApiError):
    """The watch can't go on from this resourceVersion: list again."""

    code = 410
    reason = "Expired"


class TooManyRequests(ApiError):
    """Throttled, or an eviction that a disruption budget forbids now: try again later."""

    code = 429
    reason = "TooManyRequests"


class Unavailable(ApiError):
    """No answer, or a server in trouble. A write may have taken effect."""

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
    """Kinds are the keys of KINDS. All kinds are namespaced; `namespace=None` lists and watches all namespaces."""

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        """A consistent list, ordered by namespace and name."""
        ...

    def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, in order, until the server ends the stream (then watch again from the
        last resourceVersion seen). Raises Gone when history doesn't reach back so far: list again."""
        ...

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        """Raises NotFound."""
        ...

    async def create(self, kind: str, obj: Object) -> Object:
        """The object as stored. A status in it is ignored. Raises AlreadyExists, Invalid, Forbidden."""
        ...

    async def update(self, kind: str, obj: Object) -> Object:
        """Replaces everything but the status. Raises Conflict unless metadata.resourceVersion is the current one
        (Invalid without one), NotFound, Invalid. A Lease, Service or Event that is gone is a Conflict instead, and
        without the uid in `obj` it would be made anew."""
        ...

    async def update_status(self, kind: str, obj: Object) -> Object:
        """Replaces the status and nothing else (of a Pod, a real server takes labels and annotations too: change none).
        Raises as `update` does."""
        ...

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        """A JSON merge patch (RFC 7386) of everything but the status. Raises Conflict when a given
        `resource_version` isn't the current one, NotFound, Invalid."""
        ...

    async def apply(self, kind: str, obj: Object) -> Object:
        """Server-side apply by one manager, forced: creates the object, or changes what is in `obj`, removes what an
        earlier `apply` had and `obj` has no more, and leaves the rest to others. The status is left out. Raises
        Conflict when a uid or resourceVersion in `obj` isn't the current one, Invalid, Forbidden."""
        ...

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Dependents follow in the background. A Pod on a node gets a deletionTimestamp and vanishes when its kubelet
        has ended it, or at once with `grace_s=0`. Raises NotFound, and Conflict when a given `uid` isn't its own."""
        ...

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        """Changes requests and limits of a Pod's containers, by their names; what isn't named stays. Raises NotFound
        (no such Pod, or a server that can't), Invalid (also when `uid` isn't its own), Forbidden."""
        ...

    async def evict(self, namespace: str, name: str) -> None:
        """Deletes a Pod as a drain does. Raises TooManyRequests when a disruption budget forbids it, NotFound."""
        ...

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        """Events about one object, in no order. They are hints for people: any may be missing."""
        ...

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        """Who holds this ServiceAccount token for `audience`; None when the server doesn't recognise it. Raises
        Unavailable when the server can't tell."""
        ...
