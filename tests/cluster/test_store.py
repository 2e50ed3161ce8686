"""What the memory store promises beyond the port: determinism, bounded history, cheap operations, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.cluster.examples import config_map, event, job, lease, owned_by, pod, service
from trainmaster_operator.cluster import objects
from trainmaster_operator.cluster.port import (
    BOOKMARK,
    CONFIG_MAP,
    JOB,
    LEASE,
    POD,
    SERVICE,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Object,
    WatchEvent,
)
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore


def names(store: MemoryStore, kind: str = POD) -> list[str]:
    return [obj["metadata"]["name"] for obj in store.list(kind).items]


def test_the_same_calls_give_the_same_world() -> None:
    def world() -> list[Object]:
        store = MemoryStore()
        owner = store.create(JOB, job("s", "a"))
        store.create(POD, owned_by(pod("s", "p"), owner))
        store.create(POD, {**pod("s", ""), "metadata": {"generateName": "g-", "namespace": "s"}})
        return [*store.list(JOB).items, *store.list(POD).items]

    assert world() == world()


def test_times_and_uids_come_from_the_injected_sources() -> None:
    ids = iter(["one", "two"])
    store = MemoryStore(now=lambda: 86_400.9, ids=lambda: next(ids))
    meta = store.create(POD, pod("s", "a"))["metadata"]
    assert (meta["uid"], meta["creationTimestamp"]) == ("one", "1970-01-02T00:00:00Z")


def test_callers_cannot_reach_into_the_store() -> None:
    store = MemoryStore()
    mine = pod("s", "a", {"k": "x"})
    reply = store.create(POD, mine)
    got = store.get(POD, "s", "a")
    for obj in (mine, reply, got):
        obj["metadata"]["labels"]["k"] = "changed"
        obj["spec"]["containers"][0]["name"] = "changed"
    kept = store.get(POD, "s", "a")
    assert kept["metadata"]["labels"] == {"k": "x"}
    assert kept["spec"]["containers"][0]["name"] == "main"


def test_an_old_list_does_not_change_under_later_writes() -> None:
    store = MemoryStore()
    store.create(POD, pod("s", "a", {"k": "x"}))
    before = store.list(POD).items[0]
    store.patch(POD, "s", "a", {"metadata": {"labels": {"k": "y"}}})
    store.evict("s", "a")
    assert before["metadata"]["labels"] == {"k": "x"}
    assert "deletionTimestamp" not in before["metadata"]


def test_a_watch_behind_the_window_is_gone_and_one_inside_it_is_not() -> None:
    store = MemoryStore(history=10)
    first = store.create(POD, pod("s", "a"))["metadata"]["resourceVersion"]
    for index in range(10):
        store.create(POD, pod("s", f"p{index}"))
    assert len(store.watch(POD, first).take()) == 10
    for index in range(20):
        store.create(POD, pod("s", f"q{index}"))
    with pytest.raises(Gone):
        store.watch(POD, first)


def test_changes_of_one_kind_do_not_push_out_those_of_another() -> None:
    store = MemoryStore(history=5)
    since = store.create(JOB, job("s", "a"))["metadata"]["resourceVersion"]
    for index in range(50):
        store.create(POD, pod("s", f"p{index}"))
    assert store.watch(JOB, since).take() == []


def test_a_watcher_that_lags_behind_the_window_is_gone() -> None:
    store = MemoryStore(history=5)
    cursor = store.watch(POD, str(store.version))
    for index in range(20):
        store.create(POD, pod("s", f"p{index}"))
    with pytest.raises(Gone):
        cursor.take()


def test_a_version_from_the_future_is_gone() -> None:
    with pytest.raises(Gone):
        MemoryStore().watch(POD, "1000")


def test_a_watch_from_zero_starts_with_what_exists() -> None:
    store = MemoryStore()
    store.create(POD, pod("s", "b"))
    store.create(POD, pod("s", "a"))
    cursor = store.watch(POD, "0")
    store.create(POD, pod("s", "c"))
    assert [(e.type, e.object["metadata"]["name"]) for e in cursor.take()] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("ADDED", "c"),
    ]


def test_a_bookmark_tells_a_quiet_watcher_where_it_is() -> None:
    store = MemoryStore()
    cursor = store.watch(JOB, str(store.version))
    store.create(POD, pod("s", "a"))
    store.bookmark()
    (told,) = cursor.take()
    assert (told.type, told.object["metadata"]["resourceVersion"]) == (BOOKMARK, str(store.version))
    assert told.object["kind"] == JOB


def test_a_selector_that_hides_many_events_earns_a_bookmark() -> None:
    store = MemoryStore()
    cursor = store.watch(POD, str(store.version), labels={"k": "x"})
    for index in range(100):
        store.create(POD, pod("s", f"p{index}"))
    assert [e.type for e in cursor.take()] == [BOOKMARK]


def test_a_closed_watch_is_forgotten() -> None:
    async def run() -> None:
        store = MemoryStore()
        stream = MemoryCluster(store).watch(POD, "0")
        store.create(POD, pod("s", "a"))
        await anext(stream)
        history = store._histories[POD]
        assert len(history.cursors) == 1
        await stream.aclose()  # type: ignore[attr-defined]
        assert not history.cursors

    asyncio.run(run())


def test_every_change_is_told_in_order_with_rising_versions() -> None:
    told: list[tuple[str, WatchEvent]] = []
    store = MemoryStore(on_change=lambda kind, event: told.append((kind, event)))
    owner = store.create(JOB, job("s", "a"))
    store.create(POD, owned_by(pod("s", "p"), owner))
    store.update_status(JOB, {**owner, "status": {"phase": "Running"}})
    store.delete(JOB, "s", "a")
    assert [(kind, e.type) for kind, e in told] == [
        (JOB, "ADDED"),
        (POD, "ADDED"),
        (JOB, "MODIFIED"),
        (JOB, "DELETED"),
        (POD, "MODIFIED"),
        (POD, "DELETED"),
    ]
    versions = [int(e.object["metadata"]["resourceVersion"]) for _, e in told]
    assert versions == sorted(set(versions))


def test_a_restored_store_goes_on_where_the_other_was() -> None:
    old = MemoryStore()
    owner = old.create(JOB, job("s", "a"))
    old.create(POD, owned_by(pod("s", "p"), owner))
    snapshot = old.snapshot()
    ids = (f"new-{n}" for n in range(9))
    new = MemoryStore(ids=lambda: next(ids))
    new.restore(snapshot)
    assert new.list(JOB).items == old.list(JOB).items
    assert int(new.create(SERVICE, service("s", "s"))["metadata"]["resourceVersion"]) > old.version
    with pytest.raises(Gone):
        new.watch(POD, owner["metadata"]["resourceVersion"])
    new.delete(JOB, "s", "a", uid=owner["metadata"]["uid"])
    assert names(new) == []


def test_a_restored_store_knows_what_was_applied() -> None:
    old = MemoryStore()
    old.apply(CONFIG_MAP, config_map("s", "a", {"x": "1", "y": "1"}))
    old.patch(CONFIG_MAP, "s", "a", {"data": {"z": "theirs"}})
    new = MemoryStore()
    new.restore(old.snapshot())
    assert new.apply(CONFIG_MAP, config_map("s", "a", {"x": "1"}))["data"] == {"x": "1", "z": "theirs"}
    new.delete(CONFIG_MAP, "s", "a")
    new.apply(CONFIG_MAP, config_map("s", "a", {}))
    assert new.apply(CONFIG_MAP, config_map("s", "a", {}))["data"] == {}
    new.delete(CONFIG_MAP, "s", "a")
    assert new.snapshot()["applied"] == {}


@pytest.mark.parametrize(
    ("live", "wanted", "before", "after"),
    [
        ({}, {"a": 1}, None, {"a": 1}),
        ({"a": 1, "b": 2}, {}, {"a": 1}, {"b": 2}),
        ({"a": {"x": 1, "y": 2}}, {}, {"a": {"x": 1}}, {"a": {"y": 2}}),
        ({"a": {"x": 1}}, {}, {"a": {"x": 1}}, {}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}, {"a": {}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [1, 2]}, {"a": [3]}),
        ({"a": "theirs"}, {}, {"b": 1}, {"a": "theirs"}),
        ({"a": "text"}, {"a": {"x": 1}}, {"a": {"y": 1}}, {"a": {"x": 1}}),
        ({"a": "text"}, {}, {"a": {"y": 1}}, {"a": "text"}),
    ],
)
def test_an_apply_owns_what_it_said_and_no_more(live: Object, wanted: Object, before: Object, after: Object) -> None:
    copies = objects.copied([live, wanted, before])
    assert objects.applied(live, wanted, before) == after
    assert [live, wanted, before] == copies


def test_versions_go_on_above_those_of_restored_objects() -> None:
    old = MemoryStore()
    made = old.create(JOB, job("s", "a"))
    made["metadata"]["resourceVersion"] = "500"
    fresh = {**job("s", "b"), "metadata": {"name": "b", "namespace": "s", "uid": "u"}}
    store = MemoryStore()
    store.restore({"version": 1, "objects": [made, fresh]})
    assert int(store.update_status(JOB, {**made, "status": {"phase": "Running"}})["metadata"]["resourceVersion"]) > 500
    store.update_status(JOB, {**store.get(JOB, "s", "b"), "status": {"phase": "Running"}})


def test_a_watch_that_was_open_at_a_restore_is_gone() -> None:
    store = MemoryStore()
    store.create(POD, pod("s", "a"))
    cursor = store.watch(POD, str(store.version))
    store.create(POD, pod("s", "b"))
    store.restore({"version": 1, "objects": []})
    with pytest.raises(Gone):
        cursor.take()
    assert names(store) == []


def test_admission_sees_old_and_new_and_can_refuse() -> None:
    def admission(kind: str, new: Object, old: Object | None) -> None:
        if kind == POD and old is None and len(store.list(POD).items) >= 1:
            raise Forbidden("exceeded quota")

    store = MemoryStore(admission=admission)
    store.create(POD, pod("s", "a"))
    with pytest.raises(Forbidden):
        store.create(POD, pod("s", "b"))
    store.patch(POD, "s", "a", {"metadata": {"labels": {"k": "x"}}})


@pytest.mark.parametrize(
    "broken",
    [
        lambda: {**pod("s", "a"), "kind": "Service"},
        lambda: {**pod("s", "a"), "apiVersion": "v2"},
        lambda: pod("s", "a", containers=[]),
        lambda: pod("s", "a", containers=[{"name": "x", "image": "i"}, {"name": "x", "image": "i"}]),
        lambda: pod("s", "a", containers=[{"name": "x", "image": "i", "env": [{"name": "N", "value": 1}]}]),
        lambda: pod("", "a"),
        lambda: pod("S", "a"),
    ],
)
def test_a_malformed_pod_is_invalid(broken: Callable[[], Object]) -> None:
    with pytest.raises(Invalid):
        MemoryStore().create(POD, broken())


def test_owners_and_finalizers_must_be_well_formed() -> None:
    store = MemoryStore()
    owner = store.create(JOB, job("s", "a"))
    twice = owned_by(pod("s", "p"), owner)
    twice["metadata"]["ownerReferences"] *= 2
    nameless = owned_by(pod("s", "p"), {**owner, "metadata": {**owner["metadata"], "uid": ""}})
    unqualified = pod("s", "p")
    unqualified["metadata"]["finalizers"] = ["wait"]
    for obj in (twice, nameless, unqualified):
        with pytest.raises(Invalid):
            store.create(POD, obj)
    elsewhere = event("s", "e")
    elsewhere["involvedObject"]["namespace"] = "other"
    with pytest.raises(Invalid):
        store.create("Event", elsewhere)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(Invalid, match=r"metadata\.name.*metadata\.labels.*spec\.hostname"):
        MemoryStore().create(POD, pod("s", "A", {"k": "?"}, hostname="B"))


def test_an_unknown_kind_is_not_found() -> None:
    with pytest.raises(NotFound):
        MemoryStore().list("Node")
    store = MemoryStore()
    made = store.create(LEASE, lease("s", "a"))
    with pytest.raises(NotFound):
        store.update_status(LEASE, made)


def test_a_bound_pod_waits_for_its_kubelet() -> None:
    store = MemoryStore()
    store.create(POD, pod("s", "a"))
    store.bind("s", "a", "n")
    with pytest.raises(Conflict):
        store.bind("s", "a", "m")
    store.delete(POD, "s", "a")
    assert names(store) == ["a"]


def test_collected_pods_get_their_grace_and_an_eviction_leaves_a_mark() -> None:
    store = MemoryStore()
    owner = store.create(JOB, job("s", "a"))
    for name in "pq":
        store.create(POD, owned_by(pod("s", name), owner))
        store.bind("s", name, "n")
    store.evict("s", "p")
    assert store.get(POD, "s", "p")["status"]["conditions"][0]["type"] == "DisruptionTarget"
    store.delete(JOB, "s", "a")
    for name in "pq":
        assert store.get(POD, "s", name)["metadata"]["deletionGracePeriodSeconds"] == 30
        store.delete(POD, "s", name, grace_s=0)
    assert names(store) == []


def test_a_pod_with_a_finalizer_and_grace_ends_when_both_are_over() -> None:
    store = MemoryStore()
    made = pod("s", "a", nodeName="n")
    made["metadata"]["finalizers"] = ["example.com/wait"]
    store.create(POD, made)
    store.delete(POD, "s", "a", grace_s=0)
    assert names(store) == ["a"]
    store.patch(POD, "s", "a", {"metadata": {"finalizers": []}})
    assert names(store) == []


def test_a_list_of_the_past_undoes_changes() -> None:
    store = MemoryStore()
    seen = []
    for step in (
        lambda: store.create(CONFIG_MAP, config_map("s", "a")),
        lambda: store.patch(CONFIG_MAP, "s", "a", {"metadata": {"labels": {"k": "x"}}}),
        lambda: store.create(CONFIG_MAP, config_map("s", "b")),
        lambda: store.delete(CONFIG_MAP, "s", "a"),
    ):
        seen.append(store.list(CONFIG_MAP).items)
        step()
        store.create(LEASE, lease("s", f"l{len(seen)}"))
    for lag, items in enumerate(reversed(seen), start=1):
        past = store.list_before(CONFIG_MAP, lag)
        assert past.items == items
        assert len(store.watch(CONFIG_MAP, past.resource_version).take()) == lag
    assert [p["metadata"]["name"] for p in store.list_before(CONFIG_MAP, 2, "s", {"k": "x"}).items] == ["a"]


def test_work_per_write_does_not_grow_with_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the objects that are copied or compared by label, not the time."""
    touched = 0
    for name in ("copied", "matches"):
        plain = getattr(objects, name)

        def counting(*arguments: object, plain: Callable[..., object] = plain) -> object:
            nonlocal touched
            touched += 1
            return plain(*arguments)

        monkeypatch.setattr(objects, name, counting)

    def work(size: int) -> int:
        nonlocal touched
        store = MemoryStore()
        for index in range(size):
            store.create(POD, pod("s", f"p{index}"))
        watchers = [store.watch(POD, str(store.version)) for _ in range(5)]
        touched = 0
        made = store.create(POD, pod("s", "one"))
        store.update_status(POD, {**made, "status": {"phase": "Running"}})
        store.patch(POD, "s", "one", {"metadata": {"labels": {"k": "x"}}})
        store.delete(POD, "s", "one")
        assert [len(watcher.take()) for watcher in watchers] == [5] * 5
        return touched

    assert work(2) == work(200)
