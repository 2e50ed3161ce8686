"""The CRD is what the models say, and what an API server takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.api.jobs import PYTORCH, TRAINMASTER, job
from trainmaster_operator.api.checkpoint_spec import CHECKPOINTS
from trainmaster_operator.api.crd import crd_schema
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.manifests import agent_identity, volumes
from trainmaster_operator.planning.facts.job_state import Failure, JobState, Recovery, Restarts, Rung
from trainmaster_operator.planning.status_mapping import write_status

COMMITTED = Path(__file__).parents[2] / "manifests" / "crd" / crd_schema.FILE
EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))


def spec_schema() -> dict[str, Any]:
    """Return the schema of `spec` in the definition."""
    spec: dict[str, Any] = crd_schema.job_schema()["properties"]["spec"]
    return spec


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schemas(schema["additionalProperties"], f"{path}{{}}")


def accepted(document: Any) -> None:
    """As an API server would: nulls that nothing allows are pruned, then the schema decides."""
    schema = crd_schema.job_schema()
    jsonschema.Draft4Validator(schema).validate(pruned(document, schema))


def pruned(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        kept = {k: v for k, v in value.items() if v is not None}
        return {k: pruned(v, known.get(k, {})) for k, v in kept.items()}
    if isinstance(value, list):
        return [pruned(v, schema.get("items", {})) for v in value]
    return value


def test_the_committed_crd_is_the_one_that_the_models_make() -> None:
    assert COMMITTED.read_text() == crd_schema.render(), "run `make generate`"


def test_check_tells_a_stale_file_by_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd_schema.main([str(tmp_path)]) == 0
    assert crd_schema.main(["--check", str(tmp_path)]) == 0
    file = tmp_path / crd_schema.FILE
    file.write_text(file.read_text().replace("shortNames", "longNames"))
    assert crd_schema.main(["--check", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "-    longNames:" in out
    assert "+    shortNames:" in out
    assert "make generate" in err


def test_the_schema_is_structural() -> None:
    for path, schema in schemas(crd_schema.job_schema()):
        allowed = {"type", "description", "enum", "default", "nullable", "format", "pattern", "items", "properties"}
        allowed |= {"required", "additionalProperties", "x-kubernetes-preserve-unknown-fields"}
        allowed |= {"x-kubernetes-validations", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        allowed |= {"minLength", "maxLength", "minItems", "maxItems", "maxProperties"}
        allowed |= {"x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
        assert set(schema) <= allowed, path
        assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}, path
        if schema["type"] == "array":
            assert "items" in schema, path
        if schema["type"] == "object":
            described = "properties" in schema or "additionalProperties" in schema
            # Of a pod template only what rules speak of is described.
            in_a_template = path.startswith(".spec.workers.template")
            # Another version's fields of a status must not be pruned.
            open_too = in_a_template or path.startswith(".status")
            assert open_too or described != ("x-kubernetes-preserve-unknown-fields" in schema), path
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            assert exclusive not in schema or (schema[exclusive] is True and bound in schema), path


def test_whatever_a_person_writes_has_a_bound() -> None:
    spec = spec_schema()
    for path, schema in schemas(spec):
        if schema["type"] == "array":
            assert "maxItems" in schema, path
        if schema["type"] == "string":
            assert "maxLength" in schema or "enum" in schema, path
        if schema["type"] in ("integer", "number") and "enum" not in schema:
            assert "minimum" in schema, path
            assert "maximum" in schema or path == ".training.seed", path  # which takes all that an int64 holds


def test_rules_reach_only_fields_that_are_required_defaulted_or_asked_for_with_has() -> None:
    spec = spec_schema()
    assert spec["properties"]["workers"]["default"] == {}
    assert spec["properties"]["framework"]["default"] == "Trainmaster"
    training = spec["properties"]["training"]["properties"]
    assert training["parallelism"]["default"] == training["optimizer"]["default"] == {}
    assert "default" in training["optimizer"]["properties"]["warmupSteps"]
    for name in ("dpReplicate", "dpShard"):
        assert "nullable" not in training["parallelism"]["properties"][name], "CEL would meet a null"


def test_null_means_nothing_in_a_spec() -> None:
    nullable = [path for path, schema in schemas(spec_schema()) if schema.get("nullable")]
    assert nullable == []


def test_names_of_fields_are_camel_case() -> None:
    names = {path.rpartition(".")[2].removesuffix("[]") for path, _ in schemas(spec_schema())}
    assert "dpReplicate" in names
    assert [name for name in sorted(names - {""}) if not re.fullmatch("[a-z][A-Za-z0-9]*", name)] == []


def test_times_that_a_person_sets_are_whole_seconds() -> None:
    times = [schema["type"] for path, schema in schemas(spec_schema()) if path.endswith("Seconds")]
    assert len(times) >= 9
    assert set(times) == {"integer"}


@pytest.mark.parametrize("half", ["spec", "status"])
def test_kubectl_explains_every_field_in_whole_sentences(half: str) -> None:
    for path, schema in schemas(crd_schema.job_schema()["properties"][half], half):
        if path.endswith(("[]", "{}")):
            continue  # kubectl shows the description of the list or the map
        text = schema.get("description", "")
        assert text[:1].isupper(), path
        assert text.endswith("."), path
        assert len(text.split()) >= 5, path


def test_kubectl_explain_tells_the_default_of_every_field_that_has_one() -> None:
    for path, schema in schemas(spec_schema()):
        default = schema.get("default", {})
        if isinstance(default, bool):
            default = str(default).lower()
        if default != {}:
            assert f"Default: {default}" in schema["description"], path


def test_kubectl_explain_says_whole_seconds_and_what_else_a_field_needs() -> None:
    described = {path: schema.get("description", "") for path, schema in schemas(spec_schema())}
    for path, text in described.items():
        if path.endswith("Seconds"):
            assert "seconds" in text, path
            assert "whole number" in text, path
    assert "128 + n, for example 137" in described[".recovery.rules[].exitCodes"]
    for path in (".checkpoint.timeoutSeconds", ".checkpoint.ram"):
        assert "if neither checkpoint.directory nor checkpoint.volume is set" in described[path]
    for path in (".recovery.elastic.waitSeconds", ".recovery.elastic.cooldownSeconds"):
        assert "if neither workers.min nor workers.max is set" in described[path]


def test_kubectl_explain_names_the_paths_that_the_operator_mounts() -> None:
    described = dict(schemas(spec_schema()))[".workers.template.spec"]["description"]
    for path in (agent_identity.IDENTITY_PATH, volumes.AGENT_PATH, volumes.RAM_PATH, CHECKPOINTS):
        assert f" {path}" in described


def test_the_scale_subresource_and_the_columns_point_at_fields_that_exist() -> None:
    (version,) = crd_schema.definition()["spec"]["versions"]
    known = {path for path, _ in schemas(crd_schema.job_schema())} | {".metadata.creationTimestamp"}
    scale = version["subresources"]["scale"]
    for path in [*scale.values(), *(column["jsonPath"] for column in version["additionalPrinterColumns"])]:
        assert path in known
    names = [column["name"].upper() for column in version["additionalPrinterColumns"]]
    assert names == ["STATE", "STEP", "LOSS", "ETA", "WORKERS", "RESTARTS", "GOODPUT", "REASON", "UPDATED", "AGE"]
    assert "training" in crd_schema.definition()["spec"]["names"]["categories"], "`kubectl get training` finds jobs"
    wide = [column["name"] for column in version["additionalPrinterColumns"] if column.get("priority")]
    assert wide == ["Reason"]


@pytest.mark.parametrize("document", [TRAINMASTER, PYTORCH], ids=["Trainmaster", "PyTorch"])
def test_the_schema_takes_a_job_and_all_its_defaults(document: dict[str, Any]) -> None:
    accepted(document)
    accepted(DistributedTrainingJob.model_validate(document).model_dump(mode="json", by_alias=True))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_schema_takes_every_example(file: Path) -> None:
    accepted(yaml.safe_load(file.read_text()))


def texts(node: Any) -> Iterator[str]:
    """All texts of a document."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from texts(each)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_mounts_the_folder_of_its_data(file: Path) -> None:
    """A pod of it finds no data otherwise."""
    spec = yaml.safe_load(file.read_text())["spec"]
    pod = spec["workers"].get("template", {"spec": {"containers": [{}]}})["spec"]
    mounts = [mount["mountPath"] for mount in pod["containers"][0].get("volumeMounts", [])]
    if any(text.startswith("/data/") for text in texts(spec)):
        assert "/data" in mounts


def test_the_schema_takes_a_full_status() -> None:
    status = JobState(
        restarts=Restarts(inPlace=1, pod=2, free=4),
        lastFailure=Failure(cause="Crash", rank=2, exitCode=137, signal="SIGKILL"),
        recoveries=[Recovery(round=2, cause="Crash", rung=Rung.IN_PLACE, clock={"detect": 0.01})],
    )
    document = job()
    document["status"] = write_status(status)
    assert document["status"]["restarts"]["total"] == 3
    accepted(document)


def test_nothing_of_another_versions_status_is_pruned() -> None:
    for path, schema in schemas(crd_schema.job_schema()["properties"]["status"]):
        if "properties" in schema:
            assert schema["x-kubernetes-preserve-unknown-fields"] is True, path
        assert path == ".conditions[]" or "required" not in schema, path


def test_conditions_are_those_of_kubernetes() -> None:
    conditions = crd_schema.job_schema()["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["required"]) == {"type", "status", "lastTransitionTime", "reason"}
    assert conditions["items"]["properties"]["reason"]["minLength"] == 1
    assert conditions["items"]["properties"]["lastTransitionTime"]["format"] == "date-time"


def test_times_in_a_status_are_dates() -> None:
    ends = ("Time", "At", ".time", ".since")
    for path, schema in schemas(crd_schema.job_schema()["properties"]["status"]):
        if path.endswith(ends):
            assert schema.get("format") == "date-time", path


@pytest.mark.parametrize(
    "changes",
    [
        {"spec__workers__replicas": 0},
        {"spec__workers__replicas": "4"},
        {"spec__framework": "Torch"},
        {"spec__training__steps": ...},
        {"spec__training__optimizer": {"lr": 0}},
        {"spec__training__optimizer": {"betas": [0.9]}},
        {"spec__training__optimizer": {"betas": [5, -3]}},
        {"metadata__name": "Not_a_name"},
        {"metadata__name": "a" * 51},
    ],
    ids=str,
)
def test_the_schema_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        accepted(job(**changes))
