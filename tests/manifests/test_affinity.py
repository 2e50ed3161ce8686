"""Nodes that a pod keeps away from, beside what its template wants."""

from __future__ import annotations

from trainmaster_operator.manifests.node_affinity import away_from, excludes_nodes

ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def required(spec: dict) -> list:  # type: ignore[type-arg]
    terms: list = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]  # type: ignore[type-arg]
    return terms


def test_a_pod_that_names_nodes_is_told_from_one_that_does_not() -> None:
    assert excludes_nodes(away_from({"containers": []}, ["a"]))
    assert not excludes_nodes(away_from({"containers": []}, []))
    of_gpus = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    assert not excludes_nodes({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [of_gpus]}}}})


def test_without_suspects_a_pod_stays_as_it_is() -> None:
    assert away_from({"containers": []}, []) == {"containers": []}


def test_a_pod_without_wishes_gets_one_term() -> None:
    assert required(away_from({"containers": []}, ["b", "a"])) == [{"matchExpressions": [ELSEWHERE]}]


def test_each_alternative_of_a_template_is_kept_away() -> None:
    one = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    other = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}
    preferred = [{"weight": 1, "preference": one}]
    between = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    spec = {
        "affinity": {
            "podAffinity": between,
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [one, other]},
                "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            },
        }
    }
    made = away_from(spec, ["a", "b"])
    assert required(made) == [
        {"matchExpressions": [*one["matchExpressions"], ELSEWHERE]},
        {**other, "matchExpressions": [ELSEWHERE]},
    ]
    assert made["affinity"]["podAffinity"] == between
    assert made["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert required(spec) == [one, other]
