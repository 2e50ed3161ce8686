"""The adapter on a real API server: the suite that the store passes too, and tokens, which only a real one issues."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

import pytest

from e2e.installation import Installation
from e2e.kube import Kube
from tests.cluster.conformance import SCENARIOS, Scenario, World
from tests.cluster.examples import pod
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_connection import Request
from trainmaster_operator.cluster.port import POD, TokenReview

_numbers = itertools.count(1)

pytestmark = pytest.mark.exclusive


@pytest.fixture(scope="module")
def quiet(kube: Kube, installation: Installation) -> Iterator[Kube]:
    """The kinds of the chart, and no operator that would touch the jobs."""
    with installation.stopped():
        yield kube


@pytest.fixture
def space(quiet: Kube) -> Iterator[str]:
    name = f"conformance-{next(_numbers)}"
    quiet.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # A Pod is refused before its ServiceAccount exists.
    quiet.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace", name, "--timeout=60s")
    yield name
    quiet.delete("Namespace", name)


def run(kube: Kube, test: Callable[[KubernetesCluster], Awaitable[None]]) -> None:
    async def inside() -> None:
        cluster = await KubernetesCluster.connect(str(kube.kubeconfig))
        try:
            await test(cluster)
        finally:
            await cluster.close()

    asyncio.run(inside())


async def the_first() -> str:
    """The cache of a custom resource begins when its definition is made: the server never had this version in it."""
    return "1"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_conformance(quiet: Kube, space: str, scenario: Scenario) -> None:
    async def test(cluster: KubernetesCluster) -> None:
        await scenario(World(cluster, space, collects_garbage=True, forgotten=the_first))

    run(quiet, test)


def test_a_token_is_recognised_for_its_audience_and_names_its_pod(quiet: Kube, space: str) -> None:
    async def test(cluster: KubernetesCluster) -> None:
        holder = (await cluster.create(POD, pod(space, "holder", serviceAccountName="default")))["metadata"]

        async def issued(audience: str, **spec: object) -> str:
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [audience], **spec},
            }
            path = f"/api/v1/namespaces/{space}/serviceaccounts/default/token"
            answer = await cluster.connection.call(Request("create", "TokenRequest", "POST", path, body=body))
            token: str = answer["status"]["token"]
            return token

        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "holder", "uid": holder["uid"]}}
        user = f"system:serviceaccount:{space}:default"
        right = await issued("trainmaster", **bound)
        assert await cluster.review_token(right, "trainmaster") == TokenReview(user, space, "holder", holder["uid"])
        assert await cluster.review_token(right, "another") is None
        assert await cluster.review_token(await issued("another", **bound), "trainmaster") is None
        assert await cluster.review_token(await issued("trainmaster"), "trainmaster") == TokenReview(
            user, space, "", ""
        )
        header, payload, signature = right.split(".")
        assert await cluster.review_token(f"{header}.{payload}.{signature[::-1]}", "trainmaster") is None

    run(quiet, test)


def test_a_list_of_many_pages_is_whole(quiet: Kube, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_operator.cluster.kubernetes.PAGE", 7)

    async def test(cluster: KubernetesCluster) -> None:
        names = [f"p{index:02}" for index in range(50)]
        await asyncio.gather(*(cluster.create(POD, pod(space, name)) for name in names))
        listing = await cluster.list(POD, space)
        assert [obj["metadata"]["name"] for obj in listing.items] == names
        seen = []
        await cluster.create(POD, pod(space, "later"))
        async for event in cluster.watch(POD, listing.resource_version, space):
            seen.append(event.object["metadata"]["name"])
            break
        assert seen == ["later"]

    run(quiet, test)
