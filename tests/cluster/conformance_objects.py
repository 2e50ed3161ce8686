"""Scenarios of objects: creating, reading, changing and applying them."""

from __future__ import annotations

from tests.cluster.examples import claim, config_map, event, job, lease, pod, revision, secret, service
from tests.cluster.scenario import World, names, now, refused, scenario, watching
from trainmaster_operator.cluster.port import (
    CLAIM,
    CONFIG_MAP,
    DELETED,
    EVENT,
    JOB,
    LEASE,
    POD,
    REVISION,
    SECRET,
    SERVICE,
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
    Object,
)

OTHER_UID = "00000000-0000-4000-8000-ffffffffffff"


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
    makers = {
        JOB: job,
        POD: pod,
        SERVICE: service,
        LEASE: lease,
        EVENT: event,
        CONFIG_MAP: config_map,
        SECRET: secret,
        REVISION: revision,
    }
    for kind, make in makers.items():
        await world.cluster.create(kind, make(world.namespace, "one"))
        listing = await world.cluster.list(kind, world.namespace)
        # Controllers of a real cluster put objects of their own into each namespace.
        (found,) = (item for item in listing.items if item["metadata"]["name"] == "one")
        assert found["kind"] == kind
        assert found["apiVersion"] == make(world.namespace, "one")["apiVersion"]
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
    for name in ("a.b", "a" * 64):
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
async def an_update_of_what_is_gone_is_refused(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    refusals = {
        JOB: (job, NotFound),
        POD: (pod, NotFound),
        CONFIG_MAP: (config_map, NotFound),
        LEASE: (lease, Conflict),
        SERVICE: (service, Conflict),
    }
    for kind, (make, refusal) in refusals.items():
        made = await cluster.create(kind, make(space, "a"))
        await cluster.delete(kind, space, "a")
        await refused(refusal, cluster.update(kind, made))
        await cluster.create(kind, make(space, "a"))
        await refused(Conflict, cluster.update(kind, made))


@scenario
async def an_update_makes_some_kinds_anew_when_no_uid_says_which_one_was_meant(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    made = await cluster.create(LEASE, lease(space, "a"))
    await cluster.delete(LEASE, space, "a")
    del made["metadata"]["uid"]
    anew = await cluster.update(LEASE, made)
    assert await cluster.get(LEASE, space, "a") == anew


@scenario
async def an_update_for_another_uid_is_a_conflict(world: World) -> None:
    made = await world.cluster.create(POD, pod(world.namespace, "a", {"a": "b"}))
    made["metadata"] |= {"uid": OTHER_UID, "labels": {"a": "c"}}
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
async def a_lease_is_taken_over_by_one_of_two(world: World) -> None:
    made = await world.cluster.create(LEASE, lease(world.namespace, "a"))
    await world.cluster.update(LEASE, {**made, "spec": {**made["spec"], "holderIdentity": "b"}})
    await refused(Conflict, world.cluster.update(LEASE, {**made, "spec": {**made["spec"], "holderIdentity": "c"}}))


@scenario
async def an_object_of_another_kind_is_invalid(world: World) -> None:
    await refused(Invalid, world.cluster.create(POD, service(world.namespace, "a")))
    await refused(Invalid, world.cluster.create(POD, {**pod(world.namespace, "a"), "apiVersion": "v2"}))


@scenario
async def a_secret_and_a_config_map_keep_their_data(world: World) -> None:
    made = await world.cluster.create(SECRET, secret(world.namespace, "a", {"key": "AAEC/w=="}))
    assert made["data"] == {"key": "AAEC/w=="}
    patched = await world.cluster.patch(SECRET, world.namespace, "a", {"data": {"key": None, "other": ""}})
    assert patched["data"] == {"other": ""}
    await refused(Invalid, world.cluster.create(SECRET, secret(world.namespace, "b", {"key": "not base64!"})))
    await refused(Invalid, world.cluster.create(CONFIG_MAP, config_map(world.namespace, "b", {"a/b": "x"})))
    text = {"ca.crt": "one\ntwo\n"}
    assert (await world.cluster.create(CONFIG_MAP, config_map(world.namespace, "b", text)))["data"] == text


@scenario
async def a_new_claim_waits_for_a_volume(world: World) -> None:
    made = await world.cluster.create(CLAIM, claim(world.namespace, "a"))
    assert made["status"]["phase"] == "Pending"
    assert names((await world.cluster.list(CLAIM, world.namespace)).items) == ["a"]


@scenario
async def an_apply_creates_changes_removes_and_leaves_the_rest_to_others(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    made = await cluster.apply(CONFIG_MAP, config_map(space, "a", {"x": "1", "y": "1"}, {"ours": "1"}))
    assert await cluster.get(CONFIG_MAP, space, "a") == made
    theirs = {"data": {"z": "theirs"}, "metadata": {"labels": {"theirs": "1"}}}
    await cluster.patch(CONFIG_MAP, space, "a", theirs)
    changed = await cluster.apply(CONFIG_MAP, config_map(space, "a", {"x": "2"}))
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert changed["data"] == {"x": "2", "z": "theirs"}
    assert changed["metadata"]["labels"] == {"theirs": "1"}
    bare = await cluster.apply(CONFIG_MAP, config_map(space, "a", {}))
    assert bare["data"] == {"z": "theirs"}


@scenario
async def an_apply_takes_back_what_others_changed(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    wanted = service(space, "a")
    wanted["spec"]["publishNotReadyAddresses"] = True
    made = await cluster.apply(SERVICE, wanted)
    theirs = await cluster.patch(SERVICE, space, "a", {"spec": {"publishNotReadyAddresses": None}})
    assert not theirs["spec"].get("publishNotReadyAddresses")
    again = await cluster.apply(SERVICE, wanted)
    assert again["spec"] == made["spec"]
    assert again["metadata"]["uid"] == made["metadata"]["uid"]


@scenario
async def an_apply_without_a_change_makes_no_version(world: World) -> None:
    wanted = config_map(world.namespace, "a", {"x": "1"}, {"k": "x"})
    made = await world.cluster.apply(CONFIG_MAP, wanted)
    assert await world.cluster.apply(CONFIG_MAP, wanted) == made


@scenario
async def an_apply_changes_no_other_object_or_version(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    wanted = config_map(space, "a", {"x": "2"})

    def named(**fields: str) -> Object:
        return {**wanted, "metadata": {**wanted["metadata"], **fields}}

    await refused(Conflict, cluster.apply(CONFIG_MAP, named(uid=OTHER_UID)))
    made = (await cluster.apply(CONFIG_MAP, config_map(space, "a", {"x": "1"})))["metadata"]
    await refused(Invalid, cluster.apply(CONFIG_MAP, named(uid=OTHER_UID)))
    stale = str(int(made["resourceVersion"]) - 1)
    await refused(Conflict, cluster.apply(CONFIG_MAP, named(resourceVersion=stale)))
    after = await cluster.apply(CONFIG_MAP, named(uid=made["uid"], resourceVersion=made["resourceVersion"]))
    assert after["data"] == {"x": "2"}


@scenario
async def a_patch_makes_no_other_object(world: World) -> None:
    cluster, space = world.cluster, world.namespace
    await cluster.create(CONFIG_MAP, config_map(space, "a", {"x": "1"}))
    for field, value in (("uid", OTHER_UID), ("name", "b"), ("namespace", "elsewhere")):
        await refused(Invalid, cluster.patch(CONFIG_MAP, space, "a", {"metadata": {field: value}}))
    await refused(Invalid, cluster.patch(CONFIG_MAP, space, "a", {"data": "text"}))
    await refused(Invalid, cluster.patch(CONFIG_MAP, space, "a", {"kind": "Secret"}))


@scenario
async def an_apply_refuses_what_a_create_refuses(world: World) -> None:
    await refused(Invalid, world.cluster.apply(CONFIG_MAP, config_map(world.namespace, "A", {})))
    await refused(Invalid, world.cluster.apply(SERVICE, service(world.namespace, "a.b")))
    await refused(NotFound, world.cluster.get(SERVICE, world.namespace, "a.b"))


@scenario
async def an_apply_leaves_the_status_alone(world: World) -> None:
    made = await world.cluster.create(JOB, job(world.namespace, "a"))
    await world.cluster.update_status(JOB, {**made, "status": {"phase": "Running"}})
    wanted = {**job(world.namespace, "a", suspend=True), "status": {"phase": "Failed"}}
    applied = await world.cluster.apply(JOB, wanted)
    assert applied["status"]["phase"] == "Running"
    assert applied["spec"]["suspend"] is True
    assert applied["metadata"]["generation"] == 2


@scenario
async def a_token_that_nobody_issued_is_nobody_s(world: World) -> None:
    for token in ("", "nonsense", "a.b.c"):
        assert await world.cluster.review_token(token, "trainmaster") is None


@scenario
async def what_a_revision_holds_never_changes(world: World) -> None:
    made = await world.cluster.create(REVISION, revision(world.namespace, "one", spec={"steps": 1}))
    await refused(Invalid, world.cluster.update(REVISION, {**made, "data": {"spec": {"steps": 2}}}))
    await refused(AlreadyExists, world.cluster.create(REVISION, revision(world.namespace, "one")))
    found = await world.cluster.get(REVISION, world.namespace, "one")
    assert found["data"] == {"spec": {"steps": 1}}
