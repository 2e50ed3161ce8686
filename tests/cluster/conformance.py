"""What every `Cluster` must do, as scenarios over any adapter. No test framework here: a scenario raises or returns.

Only what a real kube-apiserver with our CRD does, alone or (GARBAGE) beside kube-controller-manager. No kubelet and no
scheduler run: a Pod on a node (`nodeName` in its spec) is never ended by anyone, so a scenario that deletes one with
grace must delete it again with grace 0. Each scenario gets a namespace of its own, which exists and is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.cluster.examples import event, job, lease, owned_by, pod, service
from trainmaster_operator.cluster.port import (
    ADDED,
    BOOKMARK,
    DELETED,
    EVENT,
    JOB,
    LEASE,
    MODIFIED,
    POD,
    SERVICE,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    Object,
    WatchEvent,
)

GIVE_UP_S = 30.0  # a watch that says nothing for so long is broken


@dataclass
class World:
    cluster: Cluster
    namespace: str
    collects_garbage: bool  # a garbage collector runs
    compact: Callable[[], Awaitable[None]] | None = None  # forget the watch history; None: can't be asked for


Scenario = Callable[[World], Awaitable[None]]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


async def refused(error: type[ApiError], call: Awaitable[object]) -> None:
    try:
        await call
    except error:
        return
    raise AssertionError(f"accepted, but {error.__name__} was due")


Next = Callable[[], Awaitable[WatchEvent]]


@asynccontextmanager
async def watching(
    world: World, kind: str, since: str, labels: dict[str, str | None] | None = None
) -> AsyncIterator[Next]:
    """Gives a function that waits for the next event beside bookmarks."""
    stream = world.cluster.watch(kind, since, world.namespace, labels)

    async def following() -> WatchEvent:
        while True:
            event = await asyncio.wait_for(anext(stream), GIVE_UP_S)
            if event.type != BOOKMARK:
                return event

    try:
        yield following
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def now(world: World, kind: str) -> str:
    return (await world.cluster.list(kind, world.namespace)).resource_version


async def gone(world: World, kind: str, name: str) -> None:
    """Waits until the object doesn't exist."""
    listing = await world.cluster.list(kind, world.namespace)
    if all(item["metadata"]["name"] != name for item in listing.items):
        return
    async with watching(world, kind, listing.resource_version) as following:
        while True:
            event = await following()
            if event.type == DELETED and event.object["metadata"]["name"] == name:
                return


def names(items: list[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


@scenario
async def a_created_object_gets_the_fields_of_the_server(world: World) -> None:
    made = await world.cluster.create(JOB, job(world.namespace, "a"))
    meta = made["metadata"]
    assert meta["uid"]
    assert meta["resourceVersion"].isdigit()
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["generation"] == 1
    assert await world.cluster.get(JOB, world.namespace, "a") == made


@scenario
async def every_kind_can_be_created_listed_and_deleted(world: World) -> None:
    makers = {JOB: job, POD: pod, SERVICE: service, LEASE: lease, EVENT: event}
    for kind, make in makers.items():
        await world.cluster.create(kind, make(world.namespace, "one"))
        listing = await world.cluster.list(kind, world.namespace)
        assert names(listing.items) == ["one"], kind
        assert listing.items[0]["kind"] == kind
        assert listing.items[0]["apiVersion"] == make(world.namespace, "one")["apiVersion"]
        await world.cluster.delete(kind, world.namespace, "one")
        await refused(NotFound, world.cluster.get(kind, world.namespace, "one"))


@scenario
async def a_name_is_taken_once(world: World) -> None:
    first = await world.cluster.create(POD, pod(world.namespace, "a"))
    await refused(AlreadyExists, world.cluster.create(POD, pod(world.namespace, "a")))
    await world.cluster.delete(POD, world.namespace, "a")
    second = await world.cluster.create(POD, pod(world.namespace, "a"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


@scenario
async def what_does_not_exist_is_not_found(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    ghost = {**lease(space, "a"), "metadata": {"name": "a", "namespace": space, "resourceVersion": "1"}}
    await refused(NotFound, cluster.get(POD, space, "a"))
    await refused(NotFound, cluster.delete(POD, space, "a"))
    await refused(NotFound, cluster.patch(POD, space, "a", {"metadata": {"labels": {"a": "b"}}}))
    await refused(NotFound, cluster.evict(space, "a"))
    ghost_job = {**job(space, "a"), "metadata": ghost["metadata"]}
    await refused(NotFound, cluster.update(JOB, ghost_job))
    await refused(NotFound, cluster.update_status(JOB, {**ghost_job, "status": {"phase": "Running"}}))


@scenario
async def a_bad_name_or_label_is_invalid(world: World) -> None:
    for name in ("A", "a_b", "-a", "a-", "a" * 254, "a..b"):
        await refused(Invalid, world.cluster.create(POD, pod(world.namespace, name)))
    for name in ("a.b", "1a", "a" * 64):
        await refused(Invalid, world.cluster.create(SERVICE, service(world.namespace, name)))
    for labels in ({"a": "b c"}, {"a": "b" * 64}, {"a b": "c"}, {"Bad_Domain/a": "b"}, {"a" * 64: "b"}):
        await refused(Invalid, world.cluster.create(POD, pod(world.namespace, "a", labels)))
    await refused(Invalid, world.cluster.create(POD, pod(world.namespace, "a", hostname="a" * 64)))
    for name in ("a" * 253, "a.b", "0"):
        await world.cluster.create(POD, pod(world.namespace, name, {"example.com/a": "B_1.c", "empty": ""}))


@scenario
async def an_update_counts_a_generation_only_when_the_spec_changes(world: World) -> None:
    made = await world.cluster.create(JOB, job(world.namespace, "a"))
    labelled = await world.cluster.patch(JOB, world.namespace, "a", {"metadata": {"labels": {"team": "x"}}})
    assert labelled["metadata"]["generation"] == 1
    assert int(labelled["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    suspended = await world.cluster.update(JOB, {**labelled, "spec": {**labelled["spec"], "suspend": True}})
    assert suspended["metadata"]["generation"] == 2
    suspended["status"] = {"phase": "Suspended"}
    assert (await world.cluster.update_status(JOB, suspended))["metadata"]["generation"] == 2


@scenario
async def a_write_without_a_change_makes_no_version_and_no_event(world: World) -> None:
    made = await world.cluster.create(JOB, job(world.namespace, "a"))
    async with watching(world, JOB, await now(world, JOB)) as following:
        assert await world.cluster.update(JOB, made) == made
        assert await world.cluster.patch(JOB, world.namespace, "a", {"spec": {"framework": "PyTorch"}}) == made
        await world.cluster.delete(JOB, world.namespace, "a")
        assert (await following()).type == DELETED


@scenario
async def update_ignores_the_status_and_update_status_ignores_the_rest(world: World) -> None:
    made = await world.cluster.create(JOB, {**job(world.namespace, "a"), "status": {"phase": "Succeeded"}})
    assert made.get("status", {}).get("phase") != "Succeeded"
    changed = {**made, "spec": {**made["spec"], "suspend": True}, "status": {"phase": "Running"}}
    after = await world.cluster.update_status(JOB, changed)
    assert after["status"]["phase"] == "Running"
    assert not after["spec"].get("suspend")
    after["metadata"]["labels"] = {"a": "b"}
    after["status"] = {"phase": "Failed"}
    updated = await world.cluster.update(JOB, after)
    assert updated["status"]["phase"] == "Running"
    assert updated["metadata"]["labels"] == {"a": "b"}
    updated["metadata"]["labels"] = {"a": "c"}
    updated["status"] = {"phase": "Suspended"}
    assert (await world.cluster.update_status(JOB, updated))["metadata"]["labels"] == {"a": "b"}
    patch = {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": None}}}
    patched = await world.cluster.patch(JOB, world.namespace, "a", patch)
    assert patched["status"]["phase"] == "Suspended"
    assert not patched["metadata"].get("labels")


@scenario
async def a_stale_write_is_a_conflict(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    old = await cluster.create(JOB, job(space, "a"))
    await cluster.patch(JOB, space, "a", {"metadata": {"labels": {"a": "b"}}})
    stale = old["metadata"]["resourceVersion"]
    await refused(Conflict, cluster.update(JOB, {**old, "spec": {**old["spec"], "suspend": True}}))
    await refused(Conflict, cluster.update_status(JOB, {**old, "status": {"phase": "Running"}}))
    await refused(Conflict, cluster.patch(JOB, space, "a", {"metadata": {"labels": {"a": "c"}}}, stale))
    current = (await cluster.get(JOB, space, "a"))["metadata"]["resourceVersion"]
    await cluster.patch(JOB, space, "a", {"metadata": {"labels": {"a": "c"}}}, current)


@scenario
async def a_write_needs_a_version(world: World) -> None:
    made = await world.cluster.create(JOB, job(world.namespace, "a"))
    del made["metadata"]["resourceVersion"]
    await refused(Invalid, world.cluster.update(JOB, {**made, "spec": {**made["spec"], "suspend": True}}))
    await refused(Invalid, world.cluster.update_status(JOB, {**made, "status": {"phase": "Running"}}))


@scenario
async def an_update_for_another_uid_is_a_conflict(world: World) -> None:
    made = await world.cluster.create(POD, pod(world.namespace, "a", {"a": "b"}))
    made["metadata"] |= {"uid": "00000000-0000-4000-8000-ffffffffffff", "labels": {"a": "c"}}
    await refused(Conflict, world.cluster.update(POD, made))


@scenario
async def the_spec_of_a_pod_is_fixed(world: World) -> None:
    made = await world.cluster.create(POD, pod(world.namespace, "a"))
    made["spec"]["hostname"] = "other"
    await refused(Invalid, world.cluster.update(POD, made))


@scenario
async def a_list_is_ordered_and_selects_by_labels(world: World) -> None:
    for name, labels in (("c", {"k": "x"}), ("a", {"k": "y"}), ("b", {"k": "x", "l": ""}), ("d", None)):
        await world.cluster.create(POD, pod(world.namespace, name, labels))

    async def selected(labels: dict[str, str | None] | None) -> list[str]:
        return names((await world.cluster.list(POD, world.namespace, labels)).items)

    assert await selected(None) == ["a", "b", "c", "d"]
    assert await selected({"k": "x"}) == ["b", "c"]
    assert await selected({"k": None}) == ["a", "b", "c"]
    assert await selected({"k": "x", "l": ""}) == ["b"]
    assert await selected({"k": "z"}) == []


@scenario
async def a_list_of_all_namespaces_holds_this_one(world: World) -> None:
    await world.cluster.create(POD, pod(world.namespace, "a"))
    items = (await world.cluster.list(POD)).items
    assert (world.namespace, "a") in [(i["metadata"]["namespace"], i["metadata"]["name"]) for i in items]


@scenario
async def a_watch_from_a_list_tells_every_change_after_it_in_order(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    await cluster.create(POD, pod(space, "before"))
    since = await now(world, POD)
    made = await cluster.create(POD, pod(space, "a"))
    async with watching(world, POD, since) as following:
        first = await following()
        assert (first.type, first.object) == (ADDED, made)
        patched = await cluster.patch(POD, space, "a", {"metadata": {"labels": {"a": "b"}}})
        second = await following()
        assert (second.type, second.object) == (MODIFIED, patched)
        await cluster.delete(POD, space, "a")
        # A real server marks a Pod before it removes it, and that may be seen.
        while (third := await following()).type == MODIFIED:
            assert third.object["metadata"]["deletionTimestamp"]
        assert third.type == DELETED
        assert third.object["metadata"]["uid"] == made["metadata"]["uid"]
        assert int(third.object["metadata"]["resourceVersion"]) > int(patched["metadata"]["resourceVersion"])


@scenario
async def a_watch_can_go_on_from_any_version_it_has_seen(world: World) -> None:
    since = await now(world, POD)
    made = [await world.cluster.create(POD, pod(world.namespace, name)) for name in "abc"]
    async with watching(world, POD, since) as following:
        assert (await following()).object == made[0]
        seen = (await following()).object["metadata"]["resourceVersion"]
    async with watching(world, POD, seen) as following:
        assert (await following()).object == made[2]


@scenario
async def a_watch_with_a_selector_sees_objects_enter_and_leave(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    await cluster.create(POD, pod(space, "a"))
    async with watching(world, POD, await now(world, POD), {"k": "x"}) as following:
        await cluster.patch(POD, space, "a", {"metadata": {"labels": {"k": "y"}}})
        entered = await cluster.patch(POD, space, "a", {"metadata": {"labels": {"k": "x"}}})
        first = await following()
        assert (first.type, first.object) == (ADDED, entered)
        left = await cluster.patch(POD, space, "a", {"metadata": {"labels": {"k": "y"}}})
        second = await following()
        assert second.type == DELETED
        assert second.object["metadata"]["labels"] == {"k": "x"}
        assert second.object["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


@scenario
async def a_watch_from_a_forgotten_version_is_gone(world: World) -> None:
    if world.compact is None:
        return
    since = await now(world, POD)
    await world.cluster.create(POD, pod(world.namespace, "a"))
    await world.compact()

    async def watch() -> None:
        async with watching(world, POD, since) as following:
            await following()

    await refused(Gone, watch())
    async with watching(world, POD, await now(world, POD)) as following:
        await world.cluster.create(POD, pod(world.namespace, "b"))
        assert (await following()).type == ADDED


@scenario
async def a_delete_for_another_uid_is_a_conflict(world: World) -> None:
    made = await world.cluster.create(POD, pod(world.namespace, "a"))
    other = "00000000-0000-4000-8000-ffffffffffff"
    await refused(Conflict, world.cluster.delete(POD, world.namespace, "a", uid=other))
    await world.cluster.delete(POD, world.namespace, "a", uid=made["metadata"]["uid"])
    await refused(NotFound, world.cluster.get(POD, world.namespace, "a"))


@scenario
async def a_pod_that_is_on_no_node_is_deleted_at_once(world: World) -> None:
    await world.cluster.create(POD, pod(world.namespace, "a"))
    await world.cluster.delete(POD, world.namespace, "a", grace_s=60)
    await refused(NotFound, world.cluster.get(POD, world.namespace, "a"))


@scenario
async def a_pod_on_a_node_stays_until_its_kubelet_removes_it(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    made = await cluster.create(POD, pod(space, "a", nodeName="none", terminationGracePeriodSeconds=40))
    await cluster.delete(POD, space, "a")
    marked = await cluster.get(POD, space, "a")
    assert marked["metadata"]["deletionTimestamp"] > made["metadata"]["creationTimestamp"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 40
    await refused(AlreadyExists, cluster.create(POD, pod(space, "a")))
    await cluster.delete(POD, space, "a", grace_s=50)
    assert await cluster.get(POD, space, "a") == marked, "a grace period never grows"
    await cluster.delete(POD, space, "a", grace_s=10)
    shorter = await cluster.get(POD, space, "a")
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 10
    assert shorter["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
    shorter["status"] = {**shorter["status"], "phase": "Running"}
    assert (await cluster.update_status(POD, shorter))["status"]["phase"] == "Running"
    await cluster.delete(POD, space, "a", grace_s=0)
    await refused(NotFound, cluster.get(POD, space, "a"))


@scenario
async def a_pod_on_a_node_that_has_ended_is_deleted_at_once(world: World) -> None:
    made = await world.cluster.create(POD, pod(world.namespace, "a", nodeName="none"))
    made["status"] = {**made["status"], "phase": "Failed"}
    await world.cluster.update_status(POD, made)
    await world.cluster.delete(POD, world.namespace, "a")
    await refused(NotFound, world.cluster.get(POD, world.namespace, "a"))


@scenario
async def a_finalizer_keeps_an_object_until_it_is_taken_off(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    made = job(space, "a")
    made["metadata"]["finalizers"] = ["example.com/wait"]
    await cluster.create(JOB, made)
    await cluster.delete(JOB, space, "a")
    marked = await cluster.get(JOB, space, "a")
    assert marked["metadata"]["deletionTimestamp"]
    marked["metadata"]["finalizers"].append("example.com/more")
    await refused(ApiError, cluster.update(JOB, marked))
    await cluster.delete(JOB, space, "a")
    async with watching(world, JOB, await now(world, JOB)) as following:
        await cluster.patch(JOB, space, "a", {"metadata": {"finalizers": None}})
        assert (await following()).type == DELETED
    await refused(NotFound, cluster.get(JOB, space, "a"))


@scenario
async def an_eviction_deletes_a_pod(world: World) -> None:
    await world.cluster.create(POD, pod(world.namespace, "a"))
    await world.cluster.evict(world.namespace, "a")
    await gone(world, POD, "a")


@scenario
async def a_lease_is_taken_over_by_one_of_two(world: World) -> None:
    made = await world.cluster.create(LEASE, lease(world.namespace, "a"))
    await world.cluster.update(LEASE, {**made, "spec": {**made["spec"], "holderIdentity": "b"}})
    await refused(Conflict, world.cluster.update(LEASE, {**made, "spec": {**made["spec"], "holderIdentity": "c"}}))


@scenario
async def dependents_follow_their_owner(world: World) -> None:
    if not world.collects_garbage:
        return
    cluster, space = world.cluster, world.namespace
    owner = await cluster.create(JOB, job(space, "a"))
    middle = await cluster.create(POD, owned_by(pod(space, "p"), owner))
    await cluster.create(SERVICE, owned_by(service(space, "s"), middle))
    await cluster.create(POD, pod(space, "other"))
    await cluster.delete(JOB, space, "a")
    await gone(world, POD, "p")
    await gone(world, SERVICE, "s")
    assert names((await cluster.list(POD, space)).items) == ["other"]


@scenario
async def a_dependent_with_another_living_owner_stays(world: World) -> None:
    if not world.collects_garbage:
        return
    cluster, space = world.cluster, world.namespace
    owners = [await cluster.create(JOB, job(space, name)) for name in "ab"]
    references = [owned_by(pod(space, "p"), owner)["metadata"]["ownerReferences"][0] for owner in owners]
    references[1]["controller"] = False
    made = pod(space, "p")
    made["metadata"]["ownerReferences"] = references
    await cluster.create(POD, made)
    await cluster.create(POD, owned_by(pod(space, "q"), owners[0]))
    await cluster.delete(JOB, space, "a")
    await gone(world, POD, "q")
    await cluster.get(POD, space, "p")


@scenario
async def an_object_whose_owner_is_gone_already_is_collected(world: World) -> None:
    if not world.collects_garbage:
        return
    cluster, space = world.cluster, world.namespace
    old = await cluster.create(JOB, job(space, "a"))
    await cluster.delete(JOB, space, "a")
    new = await cluster.create(JOB, job(space, "a"))
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    await cluster.create(POD, owned_by(pod(space, "p"), old))
    await gone(world, POD, "p")
