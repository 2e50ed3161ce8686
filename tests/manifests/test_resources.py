"""Resources that containers can be given while they run."""

import pytest

from trainmaster_operator.api.quantities import millis_of
from trainmaster_operator.manifests.resources import amounts, changes, read, written


@pytest.mark.parametrize(
    ("quantity", "millis"),
    [
        *(("2", 2000), ("500m", 500), ("0.5", 500), ("1.5", 1500), ("1e1", 10000)),
        *(("two", None), ("1e999", None), ("9" * 5000, None)),
    ],
)
def test_cpus_are_read_as_kubernetes_writes_them(quantity: str, millis: int | None) -> None:
    assert millis_of(quantity) == millis


def container(name: str = "main", **resources: dict[str, str]) -> dict[str, object]:
    return {"name": name, "resources": resources}


def test_a_request_that_is_left_out_is_the_limit() -> None:
    assert amounts([container(limits={"cpu": "2"})]) == amounts([container(limits={"cpu": "2"}, requests={"cpu": "2"})])


def test_one_amount_may_be_written_in_several_ways() -> None:
    wanted = amounts([container(requests={"cpu": "1", "memory": "1Gi"})])
    assert changes(wanted, amounts([container(requests={"cpu": "1000m", "memory": "1024Mi"})])) == {}


def test_only_what_differs_is_changed_and_only_cpu_and_memory() -> None:
    found = amounts(
        [container(requests={"cpu": "1", "memory": "1Gi"}, limits={"nvidia.com/gpu": "1"}), container("log")]
    )
    wanted = amounts(
        [
            container(requests={"cpu": "1500m", "memory": "1Gi"}, limits={"nvidia.com/gpu": "8"}),
            container("log", limits={"memory": "64Mi"}),
        ]
    )
    assert changes(wanted, found) == {
        "main": {"requests": {"cpu": "1500m"}},
        "log": {"limits": {"memory": "67108864"}, "requests": {"memory": "67108864"}},
    }


def test_defaults_that_somebody_else_has_set_stay() -> None:
    found = amounts([container(requests={"cpu": "1"}, limits={"cpu": "4", "memory": "8Gi"})])
    assert changes(amounts([container(requests={"cpu": "1"})]), found) == {}
    assert changes(amounts([container()]), found) == {}


def test_what_was_asked_of_a_pod_is_read_from_its_annotation_as_it_was_written() -> None:
    wanted = amounts([container(requests={"cpu": "1.5"}, limits={"memory": "1Gi"}), container("log")])
    assert read(written(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "no JSON", "[]", "3", '{"main": 3}', '{"main": {"limits": {"cpu": "two"}}}'),
        '{"main": {"limits": {"cpu": "1e999"}}}',
        '{"main": {"limits": {"memory": "' + "9" * 400 + '.5"}}}',
        "[" * 100_000,
    ],
)
def test_an_annotation_of_somebody_else_asks_for_nothing(text: str) -> None:
    assert read(text) == ()
