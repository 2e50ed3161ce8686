"""`Cluster` over a real API server."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from trainmaster_operator.cluster import kubernetes_credentials, kubernetes_watch
from trainmaster_operator.cluster.kubernetes_connection import (
    CONNECTIONS,
    ApiCalls,
    Connection,
    Request,
)
from trainmaster_operator.cluster.kubernetes_watch import without_managed_fields
from trainmaster_operator.cluster.port import (
    EVENT,
    KINDS,
    POD,
    ApiError,
    Gone,
    Invalid,
    Labels,
    Listing,
    NotFound,
    Object,
    Scraper,
    TokenReview,
    Unavailable,
    WatchEvent,
)

FIELD_MANAGER = "trainmaster"
STRICTLY = {"fieldValidation": "Strict"}
PAGE = 500

_ROOTS = {name: f"/{'apis' if '/' in kind.api_version else 'api'}/{kind.api_version}" for name, kind in KINDS.items()}
_SERVICE_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


class KubernetesCluster:
    """The adapter for a real API server. Use it in the event loop in which it was created, and close it. Objects
    come without managedFields, which are not used here and are half of a Pod's size."""

    def __init__(self, connection: Connection, chance: random.Random | None = None) -> None:
        self.connection = connection
        self._random = chance or random.Random()

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        calls: ApiCalls | None = None,
        context: str | None = None,
        connections: int = CONNECTIONS,
    ) -> KubernetesCluster:
        """Return a cluster without calling it yet. Without `kubeconfig` a pod's own credentials are used. Raise
        NoCluster."""
        configuration = await kubernetes_credentials.load(kubeconfig, context)
        try:
            return cls(Connection(configuration, calls, connections))
        except OSError as error:
            raise kubernetes_credentials.NoCluster(f"{configuration.host}: certificates: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self.connection.close()

    async def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        expired: Gone | None = None
        # The last attempt asks for all objects at once, which cannot expire between two pages.
        for limit in (PAGE, PAGE, 0):
            try:
                return await self._pages(kind, namespace, _selected(labels), limit)
            except Gone as error:
                expired = error
        assert expired is not None
        raise expired

    async def _pages(self, kind: str, namespace: str | None, selected: dict[str, str], limit: int) -> Listing:
        query = {**selected, "limit": str(limit)} if limit else selected
        items: list[Object] = []
        while True:
            request = Request("list", kind, "GET", _path(kind, namespace), query)
            page = await self.connection.call(request)
            try:
                meta, some = page["metadata"], page["items"] or []
                for obj in some:
                    obj["kind"], obj["apiVersion"] = kind, KINDS[kind].api_version  # Lists leave these fields out.
                    items.append(without_managed_fields(obj))
                rest = meta.get("continue")
                if not rest:
                    # etcd sorts by "namespace/name" as one text, in which "a-b" comes before "a".
                    items.sort(key=_order)
                    return Listing(items, meta["resourceVersion"])
            except (KeyError, TypeError, AttributeError) as error:
                raise Unavailable(f"{request}: not a list") from error
            query = {**query, "continue": rest}

    def watch(
        self, kind: str, resource_version: str, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[WatchEvent]:
        request = Request("watch", kind, "GET", _path(kind, namespace), _selected(labels))
        return kubernetes_watch.watch(self.connection, request, resource_version, self._random.random())

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._object(Request("get", kind, "GET", _path_of(kind, namespace, name)))

    async def create(self, kind: str, obj: Object) -> Object:
        # A user writes the template of a pod. Without this, the server would silently drop a field that it does not
        # know.
        query = STRICTLY if kind == POD else None
        return await self._object(self._creation("create", kind, obj, query))

    async def try_create(self, kind: str, obj: Object) -> None:
        """Validate and admit an object as `create` does and refuse unknown fields, but store nothing. Raise as
        `create` does."""
        await self._object(self._creation("try_create", kind, obj, {**STRICTLY, "dryRun": "All"}))

    @staticmethod
    def _creation(verb: str, kind: str, obj: Object, query: Mapping[str, str] | None) -> Request:
        return Request(verb, kind, "POST", _path(kind, _meta(obj).get("namespace") or ""), query, obj)

    async def disruption_budgets(self, namespace: str) -> Sequence[Object]:
        """Return the PodDisruptionBudgets of a namespace. This is not part of the port. Raise ApiError."""
        path = f"/apis/policy/v1/namespaces/{_segment('metadata.namespace', namespace)}/poddisruptionbudgets"
        request = Request("list", "PodDisruptionBudget", "GET", path)
        listing = await self.connection.call(request)
        items = listing.get("items") if isinstance(listing, dict) else None
        if not isinstance(items, list):
            raise Unavailable(f"{request}: not a list")
        return items

    async def published_schema(self, kind: str) -> Object | None:
        """Return the schema by which the server validates objects of a kind, from its OpenAPI document; None if it
        has none. Raise ApiError."""
        group, _, version = KINDS[kind].api_version.rpartition("/")
        request = Request("published_schema", kind, "GET", f"/openapi/v3{_ROOTS[kind]}")
        document = await self.connection.call(request)
        named = {"group": group, "version": version, "kind": kind}
        schemas = (
            ((document.get("components") or {}).get("schemas") or {}).values() if isinstance(document, dict) else ()
        )
        return next((s for s in schemas if named in (s.get("x-kubernetes-group-version-kind") or [])), None)

    async def update(self, kind: str, obj: Object) -> Object:
        return await self._object(Request("update", kind, "PUT", _path_to(kind, obj), body=_versioned(kind, obj)))

    async def update_status(self, kind: str, obj: Object) -> Object:
        path = f"{_path_to(kind, obj)}/status"
        return await self._object(Request("update_status", kind, "PUT", path, body=_versioned(kind, obj)))

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None
    ) -> Object:
        if resource_version is not None:
            patch = {**patch, "metadata": {**_meta(patch), "resourceVersion": resource_version}}
        path = _path_of(kind, namespace, name)
        merge = "application/merge-patch+json"
        return await self._object(Request("patch", kind, "PATCH", path, body=patch, content_type=merge))

    async def apply(self, kind: str, obj: Object) -> Object:
        wanted = {key: value for key, value in obj.items() if key != "status"}
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        apply = "application/apply-patch+yaml"
        return await self._object(Request("apply", kind, "PATCH", _path_to(kind, obj), query, wanted, apply))

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = _path_of(kind, namespace, name)
        await self.connection.call(Request("delete", kind, "DELETE", path, body=options))

    async def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        path = f"{_path_of(POD, namespace, name)}/resize"
        containers = [{"name": container, "resources": given} for container, given in resources.items()]
        body = {"metadata": {"uid": uid}, "spec": {"containers": containers}}
        merge = "application/strategic-merge-patch+json"
        return await self._object(Request("resize", POD, "PATCH", path, body=body, content_type=merge))

    async def evict(self, namespace: str, name: str) -> None:
        path = f"{_path_of(POD, namespace, name)}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        await self.connection.call(Request("evict", POD, "POST", path, body=body))

    async def events_about(self, namespace: str, uid: str) -> Sequence[Object]:
        return (await self._pages(EVENT, namespace, {"fieldSelector": f"involvedObject.uid={uid}"}, 0)).items

    async def review_token(self, token: str, audience: str) -> TokenReview | None:
        status = await self._token_status(token, {"audiences": [audience]})
        return _reviewed(status, audience) if status is not None else None

    async def review_scraper(self, token: str, path: str) -> Scraper | None:
        """Return who owns this token, for the API server's own audience, and whether they may get `path`, which is
        no resource. This is not part of the port. Return None if the server does not recognise the token. Raise
        Unavailable if the server cannot tell."""
        status = await self._token_status(token, {})
        user = (status or {}).get("user") or {}
        if status is None or status.get("authenticated") is not True or not user.get("username"):
            return None
        spec = {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
        spec |= {"user": user["username"], "nonResourceAttributes": {"path": path, "verb": "get"}}
        answer = await self._review("review_access", "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return Scraper(str(user["username"]), answer.get("allowed") is True)

    async def _token_status(self, token: str, audience: Object) -> Object | None:
        if not token:
            return None  # The API server would call such a request malformed.
        return await self._review(
            "review_token", "authentication.k8s.io/v1", "TokenReview", {"token": token} | audience
        )

    async def _review(self, verb: str, api_version: str, kind: str, spec: Object) -> Object:
        """Return the status of a review. Every failure is raised as Unavailable, because it says nothing about the
        token."""
        body = {"apiVersion": api_version, "kind": kind, "spec": spec}
        path = f"/apis/{api_version}/{kind.lower()}s"
        try:
            review = await self.connection.call(Request(verb, kind, "POST", path, body=body))
        except ApiError as error:
            raise Unavailable(f"tokens can't be reviewed: {error}") from error
        status = review.get("status") if isinstance(review, dict) else None
        if not isinstance(status, dict):
            raise Unavailable("tokens can't be reviewed: the answer isn't a review")
        return status

    async def _object(self, request: Request) -> Object:
        obj = await self.connection.call(request)
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
            raise Unavailable(f"{request}: the answer isn't an object")
        return without_managed_fields(obj)


def _reviewed(status: Object, audience: str) -> TokenReview | None:
    # A server that does not know audiences leaves them out, and has checked the token only for itself.
    if status.get("authenticated") is not True or audience not in (status.get("audiences") or []):
        return None
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    username = str(user.get("username") or "")
    account = username.removeprefix(_SERVICE_ACCOUNT)
    namespace = account.partition(":")[0] if account != username else ""
    return TokenReview(username, namespace, _first(extra.get(_POD_NAME)), _first(extra.get(_POD_UID)))


def _first(values: Any) -> str:
    return str(values[0]) if isinstance(values, list) and values else ""


def _order(obj: Object) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _selected(labels: Labels | None) -> dict[str, str]:
    if not labels:
        return {}
    return {"labelSelector": ",".join(key if value is None else f"{key}={value}" for key, value in labels.items())}


def _meta(obj: Object) -> Object:
    return obj.get("metadata") or {}


def _versioned(kind: str, obj: Object) -> Object:
    """Return the object. Raise Invalid if it has no version: for some kinds the server would then overwrite whatever
    exists, which the port does not allow."""
    if not _meta(obj).get("resourceVersion"):
        name = _meta(obj).get("name")
        raise Invalid(f'{kind} "{name}" is invalid: metadata.resourceVersion: must be specified for an update')
    return obj


def _path(kind: str, namespace: str | None) -> str:
    if kind not in KINDS:
        raise NotFound(f"the server doesn't have a resource type {kind!r}")
    if namespace is None:
        return f"{_ROOTS[kind]}/{KINDS[kind].plural}"
    return f"{_ROOTS[kind]}/namespaces/{_segment('metadata.namespace', namespace)}/{KINDS[kind].plural}"


def _path_of(kind: str, namespace: str, name: str) -> str:
    return f"{_path(kind, namespace)}/{_segment('metadata.name', name)}"


def _path_to(kind: str, obj: Object) -> str:
    meta = _meta(obj)
    return _path_of(kind, meta.get("namespace") or "", meta.get("name") or "")


def _segment(field: str, text: str) -> str:
    """Return a text quoted for a path. Raise Invalid for an empty name, which would mean the whole collection, and
    for ".", ".."."""
    if text in ("", ".", ".."):
        raise Invalid(f"{field}: {text!r}: Required value")
    return quote(text, safe="")
