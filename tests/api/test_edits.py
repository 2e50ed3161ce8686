"""What an edit does while a run is on, field by field; and what a run obeys after one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.crd import cel_rules, crd_schema
from trainmaster_operator.api.job_spec import JobSpec
from trainmaster_operator.api.spec_edits import FIELDS, Edit, differences, edit_of, effective_spec, frozen, merge_live

PAGE = Path(__file__).parents[2] / "docs" / "editing.md"
ROWS = {
    "takes effect at once": Edit.LIVE,
    "waits for the next run": Edit.WAITS,
    "is refused until the job is suspended": Edit.REFUSED,
}
SPEC = crd_schema.job_schema()["properties"]["spec"]


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    if path.startswith("workers.template") or "properties" not in schema:
        yield path
        return
    for name, child in schema["properties"].items():
        yield from leaves(child, f"{path}.{name}" if path else name)


def there(path: str) -> bool:
    found = SPEC
    for name in path.split("."):
        found = found.get("properties", {}).get(name)
        if found is None:
            return False
    return True


def spec(base: dict[str, Any] = TRAINMASTER, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = job(base, **changes)["spec"]
    return found


@pytest.mark.parametrize("path", sorted(set(leaves(SPEC))))
def test_the_table_has_every_field_of_the_schema(path: str) -> None:
    assert edit_of(path) in Edit


def test_a_field_that_the_table_lacks_belongs_to_nobody() -> None:
    for path in ("color", "workers.color", "training.color", "recovery.color", "checkpoint.color"):
        with pytest.raises(KeyError):
            edit_of(path)


def test_the_table_has_no_field_that_the_schema_lacks() -> None:
    assert [path for path in FIELDS if not there(path)] == []


def test_what_the_table_calls_refused_is_refused_by_a_rule_of_the_schema() -> None:
    rules = " ".join(rule["rule"] for rule in cel_rules.SPEC_RULES)
    for path, edit in FIELDS.items():
        assert (f"self.{path} == oldSelf.{path}" in rules) == (edit is Edit.REFUSED or path == "workers.replicas"), path


SENTINEL = {"changed": "by an edit"}
"""A value that no field has. What an edit does with a value does not depend on the value."""


@pytest.mark.parametrize(("path", "edit"), sorted(FIELDS.items() - {("workers.template", Edit.WAITS)}))
def test_a_run_takes_a_field_from_the_job_or_from_its_beginning_as_the_table_says(path: str, edit: Edit) -> None:
    """And its hash holds what its pods have in common: an edit of a live field makes no other revision. The template,
    parts of which are live, has a test of its own."""
    plain = spec()
    edited = with_value(plain, path, SENTINEL)
    assert value_at(merge_live(plain, edited), path) == (SENTINEL if edit is Edit.LIVE else value_at(plain, path))
    assert value_at(frozen(edited), path) == (None if edit is Edit.LIVE else SENTINEL)


def with_value(given: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    name, _, rest = path.partition(".")
    return {**given, name: with_value(given.get(name) or {}, rest, value) if rest else value}


def value_at(given: Any, path: str) -> Any:
    for name in path.split("."):
        given = (given or {}).get(name)
    return given


def test_what_waits_is_as_the_run_began_and_what_is_live_is_as_the_job_has_it() -> None:
    kept = spec(spec__training__optimizer={"lr": 0.1}, spec__recovery={"budget": {"pod": 1}, "zygote": False})
    live = spec(
        spec__training__optimizer={"lr": 0.2},
        spec__recovery={"budget": {"pod": 7}},
        spec__workers__spares=2,
        spec__suspend=True,
        spec__activeDeadlineSeconds=60,
    )
    now, waiting = effective_spec(kept, live, 4)
    assert waiting == ("training.optimizer.lr", "recovery.zygote")
    assert now.training is not None
    assert (now.training.optimizer.lr, now.recovery.zygote) == (0.1, False)
    assert (now.recovery.budget.pod, now.workers.spares, now.suspend, now.activeDeadlineSeconds) == (7, 2, True, 60)


def test_a_live_field_that_was_taken_away_is_gone() -> None:
    kept = spec(spec__activeDeadlineSeconds=60, spec__scheduling={"releaseSeconds": 5}, spec__training__seed=1)
    now, _ = effective_spec(kept, spec(spec__training__seed=2), 4)
    assert (now.activeDeadlineSeconds, now.scheduling.releaseSeconds) == (None, 900)


def test_a_default_that_is_written_down_is_no_edit() -> None:
    now, waiting = effective_spec(spec(), spec(spec__training__seed=0, spec__checkpoint={"resume": "Auto"}), 4)
    assert waiting == ()
    assert now.training is not None


def test_cpu_and_memory_of_the_template_are_live_and_the_rest_of_it_waits() -> None:
    def script(image: str, **resources: Any) -> dict[str, Any]:
        container = {"name": "main", "image": image, "command": ["run"], "resources": resources}
        return spec(PYTORCH, spec__workers__template__spec__containers=[container])

    kept = script("a:1", limits={"cpu": "1", "nvidia.com/gpu": 1})
    live = script("a:2", limits={"cpu": "2", "nvidia.com/gpu": 8}, requests={"memory": "1Gi"})
    now, waiting = effective_spec(kept, live, 2)
    assert waiting == (
        "workers.template.spec.containers[0].image",
        "workers.template.spec.containers[0].resources.limits.nvidia.com/gpu",
    )
    assert now.container() == {
        "name": "main",
        "image": "a:1",
        "command": ["run"],
        "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": 1}, "requests": {"memory": "1Gi"}},
    }


def test_sizes_that_do_not_fit_what_the_run_keeps_wait_too() -> None:
    """Both were edited while the job was suspended for a moment, and its run goes on."""
    kept = spec()  # 2 x 2 ranks
    live = spec(spec__workers__replicas=3, spec__training__parallelism={}, spec__training__batch={"global": 9})
    now, waiting = effective_spec(kept, live, 4)
    assert now.workers.replicas == 4
    assert waiting[0] == "workers.replicas"


def test_a_spec_without_its_live_fields_shares_nothing_that_is_changed() -> None:
    given = spec(spec__recovery={"budget": {"pod": 1}, "zygote": True}, spec__suspend=True)
    kept = frozen(given)
    assert kept["recovery"] == {"zygote": True}
    assert "suspend" not in kept
    assert given["suspend"] is True
    assert given["recovery"]["budget"] == {"pod": 1}
    assert differences(JobSpec.model_validate(given), JobSpec.model_validate({**given, "suspend": False})) == ()


def test_the_page_tells_of_every_field_what_an_edit_does() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(("| takes ", "| waits ", "| is "))]
    table = [line.strip("| ").split(" | ") for line in lines]
    told = {path: ROWS[words] for words, paths in table for path in re.findall(r"`([\w.]+)`", paths.split(";")[0])}
    assert told == dict(FIELDS)
