"""Scenarios of watches, deletions and garbage."""

from __future__ import annotations

from tests.cluster.examples import claim, container, job, owned_by, pod, service
from tests.cluster.scenario import World, gone, names, now, refused, scenario, watching
from trainmaster_operator.cluster.port import (
    ADDED,
    CLAIM,
    DELETED,
    JOB,
    MODIFIED,
    POD,
    SERVICE,
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
)


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
        third, fourth = await following(), await following()
        assert (third.type, fourth.type) == (MODIFIED, DELETED), "a Pod is marked before it goes, however it goes"
        for told in (third, fourth):
            assert told.object["metadata"]["uid"] == made["metadata"]["uid"]
            assert told.object["metadata"]["deletionTimestamp"]
            assert told.object["metadata"]["deletionGracePeriodSeconds"] == 0
        versions = [int(told.object["metadata"]["resourceVersion"]) for told in (second, third, fourth)]
        assert versions == sorted(set(versions))


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
    since = await world.forgotten()

    async def watch() -> None:
        async with watching(world, JOB, since) as following:
            await following()

    await refused(Gone, watch())
    async with watching(world, JOB, await now(world, JOB)) as following:
        await world.cluster.create(JOB, job(world.namespace, "b"))
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
    assert marked["metadata"]["generation"] == 2
    assert marked["metadata"]["deletionTimestamp"] > made["metadata"]["creationTimestamp"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 40
    await refused(AlreadyExists, cluster.create(POD, pod(space, "a")))
    await cluster.delete(POD, space, "a", grace_s=50)
    assert await cluster.get(POD, space, "a") == marked, "a grace period never grows"
    await cluster.delete(POD, space, "a", grace_s=10)
    shorter = await cluster.get(POD, space, "a")
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 10
    assert shorter["metadata"]["generation"] == 2
    assert shorter["metadata"]["deletionTimestamp"] < marked["metadata"]["deletionTimestamp"]
    shorter["status"] = {**shorter["status"], "phase": "Running"}
    assert (await cluster.update_status(POD, shorter))["status"]["phase"] == "Running"
    await cluster.delete(POD, space, "a", grace_s=-1)
    assert (await cluster.get(POD, space, "a"))["metadata"]["deletionGracePeriodSeconds"] == 1, "less than none is 1 s"
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
        told = await following()
        assert (told.type, told.object["metadata"]["finalizers"]) == (DELETED, ["example.com/wait"])
    await refused(NotFound, cluster.get(JOB, space, "a"))


@scenario
async def resources_of_a_pod_change_by_container(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    both = [
        container(name=name, resources={"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}})
        for name in ("main", "beside")
    ]
    made = await cluster.create(POD, pod(space, "a", containers=both))
    uid = made["metadata"]["uid"]
    more = {"requests": {"cpu": "200m"}, "limits": {"memory": "256Mi"}}
    changed = await cluster.resize(space, "a", uid, {"main": more})
    main, beside = (one["resources"] for one in changed["spec"]["containers"])
    assert main == {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    assert beside == made["spec"]["containers"][1]["resources"]
    assert changed["metadata"]["uid"] == uid
    assert await cluster.get(POD, space, "a") == changed
    await refused(Invalid, cluster.resize(space, "a", "another", {"main": more}))
    await refused(NotFound, cluster.resize(space, "b", uid, {"main": more}))
    await refused(Invalid, cluster.resize(space, "a", uid, {"nobody": more}))
    assert await cluster.get(POD, space, "a") == changed


@scenario
async def an_eviction_deletes_a_pod(world: World) -> None:
    await world.cluster.create(POD, pod(world.namespace, "a"))
    await world.cluster.evict(world.namespace, "a")
    await gone(world, POD, "a")


@scenario
async def an_eviction_leaves_its_mark_once(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    for name in ("evicted", "deleted-before"):
        await cluster.create(POD, pod(space, name, nodeName="none"))
        if name == "deleted-before":
            await cluster.delete(POD, space, name)
        await cluster.evict(space, name)
        marked = await cluster.get(POD, space, name)
        assert marked["metadata"]["deletionTimestamp"]
        conditions = [c for c in marked["status"]["conditions"] if c["type"] == "DisruptionTarget"]
        assert [(c["status"], c["reason"]) for c in conditions] == [("True", "EvictionByEvictionAPI")]
        await cluster.evict(space, name)
        assert await cluster.get(POD, space, name) == marked
        await cluster.delete(POD, space, name, grace_s=0)


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


@scenario
async def a_claim_that_no_pod_uses_goes_when_it_is_deleted(world: World) -> None:
    made = await world.cluster.create(CLAIM, claim(world.namespace, "a"))
    await world.cluster.delete(CLAIM, world.namespace, "a", uid=made["metadata"]["uid"])
    await gone(world, CLAIM, "a")
