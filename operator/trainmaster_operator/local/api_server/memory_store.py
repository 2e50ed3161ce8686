"""The memory store: the storage of an API server, with the behaviour that matters here. It is synchronous and
deterministic and does no I/O.

An object in the store is never changed in place: a write stores a new dict. So lists, watch events and `on_change`
return the stored dicts themselves, and nothing is copied.

Deliberately missing are namespaces as objects (every valid name exists), schemas and defaults (see `admission`),
disruption budgets, field managers other than the one of `apply`, and `stringData` of Secrets. Garbage is collected
within the write that causes it; a real cluster takes some seconds for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import (
    ADDED,
    CLAIM,
    DELETED,
    EVENT,
    JOB,
    KINDS,
    LEASE,
    MODIFIED,
    POD,
    SERVICE,
    AlreadyExists,
    Conflict,
    EventType,
    Invalid,
    Labels,
    Listing,
    NotFound,
    Object,
    WatchEvent,
)
from trainmaster_operator.local.api_server import object_validation, pod_deletion
from trainmaster_operator.local.api_server.object_table import Key, ObjectTable, key_of, known_kind
from trainmaster_operator.local.api_server.watch_history import WINDOW, Cursor, Entry, History

_COUNTS_GENERATIONS = (JOB, POD)
_MADE_BY_UPDATES = (EVENT, LEASE, SERVICE)  # An update of an object of these kinds that does not exist creates it.
_FIRST_STATUS: dict[str, Object] = {
    POD: {"phase": "Pending"},
    SERVICE: {"loadBalancer": {}},
    CLAIM: {"phase": "Pending"},
}


def counted_ids() -> Callable[[], str]:
    """Return a function that returns the uids 00000000-0000-4000-8000-000000000001 and so on."""
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"


class MemoryStore:
    """`now` returns seconds since 1970 and `ids` returns uids; by default time stands still and uids are counted.
    `history`: minimum number of changes of a kind that a watch can go back. `admission(kind, new, old)` may raise
    Invalid or Forbidden before a write. `on_change(kind, event)` is called after each change, in order; it must not
    change the object. `shares`: no caller ever changes an object that it has passed or received, so nothing is
    copied."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = lambda: 1_700_000_000.0,
        ids: Callable[[], str] | None = None,
        history: int = WINDOW,
        admission: Callable[[str, Object, Object | None], None] | None = None,
        on_change: Callable[[str, WatchEvent], None] | None = None,
        shares: bool = False,
    ) -> None:
        self.now = now
        self.ids = ids or counted_ids()
        self.admission = admission
        self.on_change = on_change
        self._shares = shares
        self.version = 1  # Version "0" has another meaning for a watch.
        self._table = ObjectTable()
        self._histories = {kind: History(kind, history, lambda: self.version) for kind in KINDS}
        self._applied: dict[str, Object] = {}  # By uid: the object that was last passed to `apply`.
        self._garbage: deque[tuple[Key, str]] = deque()

    # -- reading

    def find(self, kind: str, namespace: str, name: str) -> Object:
        """Return the stored object itself. Raise NotFound."""
        obj = self._table.find(known_kind(kind), namespace, name)
        if obj is None:
            raise NotFound(f'{KINDS[kind].plural} "{name}" not found')
        return obj

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self._given(self.find(kind, namespace, name))

    def list(self, kind: str, namespace: str | None = None, labels: Labels | None = None) -> Listing:
        items = [obj for obj in self._in(kind, namespace) if objects.matches(obj, labels)]
        return Listing(items, str(self.version))

    def list_before(
        self, kind: str, changes: int, namespace: str | None = None, labels: Labels | None = None
    ) -> Listing:
        """Return the list as it was before the last `changes` changes of this kind, as a cache that is late would
        have it."""
        version, entries = self._histories[known_kind(kind)].undone(changes)
        state: dict[tuple[str, str], Object | None] = {
            (obj["metadata"]["namespace"], obj["metadata"]["name"]): obj for obj in self._in(kind, namespace)
        }
        for entry in entries:
            meta = entry.object["metadata"]
            if namespace in (None, meta["namespace"]):
                state[meta["namespace"], meta["name"]] = entry.before
        items = [obj for _, obj in sorted(state.items()) if obj is not None and objects.matches(obj, labels)]
        return Listing(items, str(version))

    def watch(self, kind: str, version: str, namespace: str | None = None, labels: Labels | None = None) -> Cursor:
        """Return a cursor, which the caller closes. With version "" or "0", existing objects come first, as ADDED.
        Raise Gone."""
        history = self._histories[known_kind(kind)]
        if version in ("", "0"):
            return Cursor(history, self.version, namespace, labels, self.list(kind, namespace, labels).items)
        return Cursor(history, object_validation.version_number(version), namespace, labels, [])

    def bookmark(self) -> None:
        """Send a bookmark to every watcher."""
        for history in self._histories.values():
            history.bookmark()

    def compact(self) -> None:
        """Forget all history: the next watch from an older version raises Gone."""
        for history in self._histories.values():
            history.compact()

    # -- writing

    def create(self, kind: str, obj: Object) -> Object:
        known_kind(kind)
        new = self._taken(obj)
        meta = new.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise Invalid("resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{self.version + 1:05x}"
        object_validation.check_create(kind, new)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(field, None)
        if self.admission:
            self.admission(kind, new, None)
        if self._table.find(kind, meta["namespace"], meta["name"]) is not None:
            raise AlreadyExists(f'{KINDS[kind].plural} "{meta["name"]}" already exists')
        meta["uid"] = self.ids()
        meta["creationTimestamp"] = objects.timestamp(self.now())
        if kind in _COUNTS_GENERATIONS:
            meta["generation"] = 1
        if KINDS[kind].has_status:
            new.pop("status", None)
            if kind in _FIRST_STATUS:
                new["status"] = _copied(_FIRST_STATUS[kind])
        self._put(kind, ADDED, new, None)
        self._collect()
        return self._given(new)

    def update(self, kind: str, obj: Object) -> Object:
        return self._replace(kind, obj, status=False)

    def update_status(self, kind: str, obj: Object) -> Object:
        if not KINDS[known_kind(kind)].has_status:
            raise NotFound(f"{KINDS[kind].plural}/status: the server could not find the requested resource")
        return self._replace(kind, obj, status=True)

    def patch(self, kind: str, namespace: str, name: str, patch: Object, resource_version: str | None = None) -> Object:
        old = self.find(kind, namespace, name)
        new = objects.merged(old, patch)
        if resource_version is not None:
            new["metadata"] = {**new["metadata"], "resourceVersion": resource_version}
        return self._replace(kind, object_validation.same_object(kind, old, new), status=False)

    def apply(self, kind: str, obj: Object) -> Object:
        """Apply an object as `Cluster.apply` does. All callers count as the same manager."""
        wanted = {key: value for key, value in self._taken(obj).items() if key != "status"}
        meta = wanted.setdefault("metadata", {})
        given = {field: meta.pop(field) for field in ("uid", "resourceVersion") if field in meta}
        if not meta.get("name"):
            raise Invalid(f"{kind}: metadata.name: Required value: name is required for an apply")
        try:
            old = self.find(kind, meta.get("namespace", ""), meta["name"])
        except NotFound:
            if "uid" in given:
                raise Conflict(f'{kind} "{meta["name"]}": uid {given["uid"]}: no existing object was found') from None
            made = self.create(kind, wanted)
        else:
            new = objects.applied(old, wanted, self._applied.get(old["metadata"]["uid"]))
            new["metadata"] = {**new["metadata"], **given}
            made = self._replace(kind, object_validation.same_object(kind, old, new), status=False)
        if self._table.holds(made["metadata"]["uid"]):
            self._applied[made["metadata"]["uid"]] = wanted
        return made

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None) -> None:
        obj = self.find(kind, namespace, name)
        meta = obj["metadata"]
        if uid is not None and uid != meta["uid"]:
            raise Conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}")
        grace = pod_deletion.grace_s(obj, grace_s) if kind == POD else 0
        if not meta.get("deletionTimestamp"):
            self._end(kind, obj, self.now() + grace, grace)
        elif grace < meta["deletionGracePeriodSeconds"] and (kind != POD or grace_s is not None):
            began = objects.seconds(meta["deletionTimestamp"]) - meta["deletionGracePeriodSeconds"]
            self._end(kind, obj, began + grace, grace)
        self._collect()

    def resize(self, namespace: str, name: str, uid: str, resources: Mapping[str, Object]) -> Object:
        """Change the resources of a Pod's containers, as the subresource `resize` does. Every change is granted."""
        old = self.find(POD, namespace, name)
        if uid != old["metadata"]["uid"]:
            raise Invalid(f'Pod "{name}" is invalid: metadata.uid: Invalid value: "{uid}": field is immutable')
        names = [container["name"] for container in old["spec"]["containers"]]
        unknown = sorted(set(resources) - set(names))
        if unknown:
            raise Invalid(f'Pod "{name}" is invalid: spec.containers: there is no container {unknown[0]}')
        containers = [
            objects.merged(container, {"resources": resources.get(container["name"], {})})
            for container in old["spec"]["containers"]
        ]
        if containers != old["spec"]["containers"]:
            self._put(POD, MODIFIED, {**old, "spec": {**old["spec"], "containers": containers}}, old)
        return self.get(POD, namespace, name)

    def evict(self, namespace: str, name: str) -> None:
        """Mark the Pod as disrupted and delete it, as the eviction API does. There are no disruption budgets here."""
        pod = self.find(POD, namespace, name)
        if marked := pod_deletion.disrupted(pod, self.now()):
            self._put(POD, MODIFIED, marked, pod)
        self.delete(POD, namespace, name, uid=pod["metadata"]["uid"])

    def bind(self, namespace: str, name: str, node: str) -> Object:
        """Bind a Pod to a node, as a scheduler does (pods/binding). After that, a deletion waits for the kubelet.
        Raise Conflict."""
        pod = self.find(POD, namespace, name)
        assigned = pod["spec"].get("nodeName")
        if assigned or pod["metadata"].get("deletionTimestamp"):
            raise Conflict(f'pod "{name}" is {f"already assigned to node {assigned}" if assigned else "being deleted"}')
        self._put(POD, MODIFIED, {**pod, "spec": {**pod["spec"], "nodeName": node}}, pod)
        return self.get(POD, namespace, name)

    # -- persistence

    def snapshot(self) -> dict[str, Any]:
        """Return a JSON value for `restore`. It shares the stored objects, so write it out before the store changes."""
        return {
            "version": self.version,
            "objects": [obj for kind in KINDS for obj in self._in(kind, None)],
            "applied": dict(self._applied),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replace everything. Earlier watches end with Gone, and `on_change` is not called. Versions continue above
        the highest one in the snapshot or in this store. An object without a version gets one."""
        self._table = ObjectTable()
        self._applied = {uid: _copied(obj) for uid, obj in snapshot.get("applied", {}).items()}
        restored = [_copied(obj) for obj in snapshot["objects"]]
        versions = [int(obj["metadata"].get("resourceVersion") or 0) for obj in restored]
        self.version = max(self.version + 1, snapshot["version"], *versions)
        for obj in restored:
            obj["metadata"].setdefault("resourceVersion", str(self.version))
            self._table.add(obj["kind"], obj)
        self.compact()

    # -- inside

    def _given(self, obj: Object) -> Object:
        return obj if self._shares else _copied(obj)

    def _taken(self, obj: Object) -> Object:
        """Return a copy that is deep enough for what this store changes in it."""
        if not self._shares:
            return _copied(obj)
        return {**obj, "metadata": dict(obj["metadata"])} if isinstance(obj.get("metadata"), dict) else dict(obj)

    def _in(self, kind: str, namespace: str | None) -> Iterator[Object]:
        return self._table.list(known_kind(kind), namespace)

    def _replace(self, kind: str, obj: Object, *, status: bool) -> Object:
        given = obj.get("metadata") or {}
        try:
            old = self.find(kind, given.get("namespace", ""), given.get("name", ""))
        except NotFound:
            if kind not in _MADE_BY_UPDATES or status:
                raise
            if given.get("uid"):
                raise Conflict(f'{KINDS[kind].plural} "{given["name"]}": uid {given["uid"]}: not found') from None
            return self.create(kind, {**obj, "metadata": {**given, "resourceVersion": None}})
        meta = old["metadata"]
        if not given.get("resourceVersion"):
            raise Invalid(
                f'{kind} "{meta["name"]}" is invalid: metadata.resourceVersion: must be specified for an update'
            )
        if given["resourceVersion"] != meta["resourceVersion"] or given.get("uid", meta["uid"]) != meta["uid"]:
            raise Conflict(
                f'Operation cannot be fulfilled on {KINDS[kind].plural} "{meta["name"]}": the object has been '
                "modified; please apply your changes to the latest version and try again"
            )
        if status:
            told = obj.get("status") or {}
            new = {**old, "status": told if self._shares else _copied(told)}
        else:
            new = self._replacement(kind, old, self._taken(obj))
        if self.admission:
            self.admission(kind, new, old)
        if new == old:
            return self._given(old)  # No change, no event and no new version, as on an API server.
        new_meta = new["metadata"]
        if new_meta.get("deletionGracePeriodSeconds") == 0 and not objects.finalizers(new):
            self._remove(kind, old)  # The last state that a watch delivers therefore still has its finalizers.
        else:
            self._put(kind, MODIFIED, new, old)
        self._collect()
        return self._given(new)

    def _replacement(self, kind: str, old: Object, new: Object) -> Object:
        """Return `new` with the fields that belong to the server taken from `old`."""
        meta = new["metadata"]
        for field in (
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "generateName",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ):
            meta.pop(field, None)
            if field in old["metadata"]:
                meta[field] = old["metadata"][field]
        if KINDS[kind].has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        object_validation.check_update(kind, old, new)
        if "generation" in meta and objects.payload(new) != objects.payload(old):
            meta["generation"] += 1
        return new

    def _end(self, kind: str, obj: Object, at: float, grace_s: int) -> None:
        """Mark the object as deleted, or as ending sooner, and remove it if nothing keeps it. A Pod is always
        visible with the mark before it is removed."""
        if grace_s == 0 and not objects.finalizers(obj) and kind != POD:
            self._remove(kind, obj)
            return
        meta = {**obj["metadata"], "deletionTimestamp": objects.timestamp(at), "deletionGracePeriodSeconds": grace_s}
        if "generation" in meta and "deletionTimestamp" not in obj["metadata"]:
            meta["generation"] += 1
        marked = {**obj, "metadata": meta}
        self._put(kind, MODIFIED, marked, obj)
        if grace_s == 0 and not objects.finalizers(obj):
            self._remove(kind, marked)

    def _put(self, kind: str, event: EventType, new: Object, old: Object | None) -> None:
        self.version += 1
        new["metadata"] = {**new["metadata"], "resourceVersion": str(self.version)}
        if old is not None:
            self._table.remove(kind, old)
        self._table.add(kind, new)
        if any(not self._table.holds(owner["uid"]) and owner["kind"] in KINDS for owner in objects.owners(new)):
            self._garbage.append((key_of(kind, new), new["metadata"]["uid"]))
        self._tell(kind, Entry(self.version, event, new, old))

    def _remove(self, kind: str, obj: Object) -> None:
        self.version += 1
        self._table.remove(kind, obj)
        self._applied.pop(obj["metadata"]["uid"], None)
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        for key in self._table.dependents(obj["metadata"]["uid"]):
            self._garbage.append((key, self.find(*key)["metadata"]["uid"]))
        self._tell(kind, Entry(self.version, DELETED, last, obj))

    def _tell(self, kind: str, entry: Entry) -> None:
        self._histories[kind].append(entry)
        if self.on_change:
            self.on_change(kind, WatchEvent(entry.type, entry.object))

    def _collect(self) -> None:
        """Delete objects that have lost all of their owners, as background cascading does."""
        while self._garbage:
            (kind, namespace, name), uid = self._garbage.popleft()
            obj = self._table.find(kind, namespace, name)
            if obj is None or obj["metadata"]["uid"] != uid:
                continue
            if not any(self._table.holds(o["uid"]) or o["kind"] not in KINDS for o in objects.owners(obj)):
                self.delete(kind, namespace, name, uid=uid)


def _copied(obj: Object) -> Object:
    copy: Object = objects.copied(obj)
    return copy
