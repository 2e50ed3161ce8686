"""Variables of a container on this machine are what a kubelet would make them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainmaster_operator.local.container_variables import expand, of_container, problems

FIELDS = {"metadata.name": "job-worker-0-0", "status.podIP": "127.0.0.1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--data=$(DATA)/train", "--data=/mnt/train"),
        ("$(DATA)$(DATA)", "/mnt/mnt"),
        ("$$(DATA)", "$(DATA)"),
        ("$$$(DATA)", "$/mnt"),
        ("costs $$5 or $6", "costs $5 or $6"),
        ("$(UNKNOWN) and $(date)", "$(UNKNOWN) and $(date)"),
        ("$(DATA", "$(DATA"),
        ("$DATA ${DATA}", "$DATA ${DATA}"),
        ("ends with $", "ends with $"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, value: str) -> None:
    assert expand(text, {"DATA": "/mnt"}) == value


def test_a_value_refers_to_variables_before_it_and_not_to_later_ones() -> None:
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ROOT", "value": "/mnt/$(POD)"},
        {"name": "DATA", "value": "$(ROOT)/$(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "EMPTY"},
    ]
    assert of_container({"env": env}, FIELDS) == {
        "POD": "job-worker-0-0",
        "ROOT": "/mnt/job-worker-0-0",
        "DATA": "/mnt/job-worker-0-0/$(LATER)",
        "LATER": "x",
        "EMPTY": "",
    }


def test_the_words_of_the_users_command_are_expanded_one_by_one() -> None:
    command = json.dumps(["python", "train.py", "--name=$(NAME)", "$$(NAME)"])
    env = [{"name": "NAME", "value": 'a "quoted" one'}, {"name": "TRAINMASTER_COMMAND", "value": command}]
    given = json.loads(of_container({"env": env}, FIELDS)["TRAINMASTER_COMMAND"])
    assert given == ["python", "train.py", '--name=a "quoted" one', "$(NAME)"]


def test_other_variables_of_ours_are_taken_as_they_are() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "TRAINMASTER_CONFIG", "value": '{"path": "$(A)$$"}'}]
    assert of_container({"env": env}, FIELDS)["TRAINMASTER_CONFIG"] == '{"path": "$(A)$$"}'


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            {"secretKeyRef": {"name": "s", "key": "k"}},
            "secretKeyRef takes its value from a Secret, which only a cluster",
        ),
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, "configMapKeyRef takes its value from a ConfigMap"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef takes its value from the container's"),
        ("metadata.name", "a map is expected, for example {fieldRef: {fieldPath: metadata.name}}"),
        ({"fieldRef": {"fieldPath": "spec.nodeName"}}, "fieldRef 'spec.nodeName' is not known on this machine"),
    ],
)
def test_what_only_a_cluster_has_is_refused_in_one_sentence(source: Any, words: str) -> None:
    container = {"env": [{"name": "A", "value": "1"}, {"name": "TOKEN", "valueFrom": source}]}
    ((place, problem),) = problems(container)
    assert place == ("env", 1, "valueFrom")
    assert words in problem
    with pytest.raises(ValueError, match="env TOKEN: "):
        of_container(container, FIELDS)


def test_an_optional_secret_is_left_out() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    container = {"env": [{"name": "TOKEN", "valueFrom": source}]}
    assert not list(problems(container))
    assert of_container(container, FIELDS) == {}


def test_variables_of_a_whole_config_map_are_refused() -> None:
    ((place, problem),) = problems({"envFrom": [{"configMapRef": {"name": "c"}}]})
    assert place == ("envFrom",)
    assert "only a cluster has" in problem
