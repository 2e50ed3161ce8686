"""The objects of the memory store, found by kind, namespace and name, by their uid, and by the uid of their owner."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import KINDS, NotFound, Object

Key = tuple[str, str, str]  # (kind, namespace, name).


class ObjectTable:
    """Holds objects as they are; it neither copies nor changes them."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, dict[str, Object]]] = {kind: {} for kind in KINDS}
        self._keys: dict[str, Key] = {}  # By uid.
        self._dependents: dict[str, dict[Key, None]] = {}  # By the uid of the owner, whether it exists or not.

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return the object with this name; None if there is none."""
        return self._objects[kind].get(namespace, {}).get(name)

    def list(self, kind: str, namespace: str | None) -> Iterator[Object]:
        """Yield the objects of a kind, ordered by namespace and name. `namespace`: None for all of them."""
        spaces = self._objects[kind]
        for space in sorted(spaces) if namespace is None else [namespace]:
            for _, obj in sorted(spaces.get(space, {}).items()):
                yield obj

    def holds(self, uid: str) -> bool:
        """Return whether there is an object with this uid."""
        return uid in self._keys

    def dependents(self, uid: str) -> Collection[Key]:
        """Return the keys of the objects that name `uid` as an owner."""
        return self._dependents.get(uid, {})

    def add(self, kind: str, obj: Object) -> None:
        """Add an object. No other object has its name."""
        key = key_of(kind, obj)
        self._objects[kind].setdefault(key[1], {})[key[2]] = obj
        self._keys[obj["metadata"]["uid"]] = key
        for owner in objects.owners(obj):
            self._dependents.setdefault(owner["uid"], {})[key] = None

    def remove(self, kind: str, obj: Object) -> None:
        """Remove an object that was added."""
        key = key_of(kind, obj)
        space = self._objects[kind][key[1]]
        del space[key[2]]
        if not space:
            del self._objects[kind][key[1]]
        del self._keys[obj["metadata"]["uid"]]
        for owner in objects.owners(obj):
            dependents = self._dependents[owner["uid"]]
            dependents.pop(key, None)
            if not dependents:
                del self._dependents[owner["uid"]]


def key_of(kind: str, obj: Object) -> Key:
    """Return the key of an object."""
    return kind, obj["metadata"]["namespace"], obj["metadata"]["name"]


def known_kind(kind: str) -> str:
    """Return `kind`. Raise NotFound if the store has no such kind."""
    if kind not in KINDS:
        raise NotFound(f"the server doesn't have a resource type {kind!r}")
    return kind
