"""The CustomResourceDefinition, generated from the models.

`python -m trainmaster_operator.api.crd.crd_schema DIR` writes it; `--check DIR` exits 1 with a diff when it is stale.
An API server wants a *structural* schema: no references, no unions, `nullable` instead of a null type, and either
listed properties or an open map. The rules that reach across fields are in `cel_rules`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any

from trainmaster_operator.api.api_group import API_VERSION, GROUP, JOB_KIND, JOB_PLURAL, VERSION
from trainmaster_operator.api.crd.cel_rules import RULE_RULES, SPEC_RULES
from trainmaster_operator.api.crd.pod_template_schema import OPEN, TEMPLATE
from trainmaster_operator.api.crd.printer_columns import COLUMNS
from trainmaster_operator.api.job_name import NAME_LIMIT, NAME_PATTERN
from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.api.status import JobStatus
from trainmaster_operator.api.validation.field_errors import SHAPES

Schema = dict[str, Any]

FILE = f"{JOB_PLURAL}.{GROUP}.yaml"

# A bound of a schema is a double, which holds integers exactly up to here. A larger bound comes from the type itself
# and is left out.
_EXACT = 2**53

_KEPT = ("description", "enum", "maxItems", "maxLength", "minItems", "minLength", "pattern")

SPEC = (
    "What the job is to do. While ranks run, a change of the model, the data, the optimizer or the pod template waits"
    " until the job is resumed or restarted, and the condition RevisionPending names the fields that wait. Sizes,"
    " deadlines, recovery and scheduling change at once."
)

STATUS = (
    "What the operator found and did. Only the operator writes it. A field is absent if there is nothing to say. What"
    " the operator remembers for itself is in the block internal."
)


def structural(schema: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    """Return a pydantic JSON schema as a structural schema.

    `defaults`: keep default values, so that a stored job shows them. Raise ValueError for a union of several types.
    """
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        # The docstring of a model is for developers. The description of the field, which is in `schema`, is for users.
        schema = {**{k: v for k, v in target.items() if k != "description"}, **schema}
    nullable = False
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option != {"type": "null"}]
        if len(options) != 1:
            raise ValueError(f"a structural schema has no unions: {schema}")
        # Where null is the default, the API server removes a null, so the field is absent.
        nullable = schema.get("default") is not None
        rest = {k: v for k, v in schema.items() if k != "anyOf"}
        return {**structural({**options[0], **rest}, definitions, defaults), **({"nullable": True} if nullable else {})}

    result: Schema = {"type": schema.get("type", "string")}
    result.update({key: schema[key] for key in _KEPT if key in schema})
    if schema.get("format") == "date-time":
        result["format"] = "date-time"
    if "const" in schema:
        result["enum"] = [schema["const"]]
    _bounds(schema, result)
    if result["type"] == "integer":
        result["format"] = "int64"
    elif result["type"] == "array":
        # In these models a tuple always has elements of one type, so it becomes a list of a fixed length.
        item = schema["items"] if "items" in schema else schema["prefixItems"][0]
        result["items"] = structural(item, definitions, defaults)
    elif result["type"] == "object":
        _properties(schema, result, definitions, defaults)
    if defaults and schema.get("default") is not None:
        result["default"] = schema["default"]
    return result


def _bounds(schema: Schema, result: Schema) -> None:
    """Add the bounds in the form of OpenAPI v3.0, where an exclusive bound is the bound and a flag next to it."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if bound in schema and abs(schema[bound]) <= _EXACT:
            result[bound] = schema[bound]
        if exclusive in schema and abs(schema[exclusive]) <= _EXACT:
            result[bound] = schema[exclusive]
            result[exclusive] = True


def _properties(schema: Schema, result: Schema, definitions: dict[str, Schema], defaults: bool) -> None:
    if "properties" in schema:
        result["properties"] = {
            name: structural(child, definitions, defaults) for name, child in schema["properties"].items()
        }
        if schema.get("required"):
            result["required"] = list(schema["required"])
        for name, child in result["properties"].items():
            # If all fields of an absent object have defaults, the API server creates the object with them, so that
            # rules and the scale subresource find its fields. An optional object is excluded, because there its absence
            # has a meaning.
            optional = schema["properties"][name].get("default", ...) is None
            if defaults and "properties" in child and "required" not in child and not optional:
                child["default"] = {}
            if name in SHAPES and "pattern" in child:
                # Without this rule the error of an API server would only cite the regular expression.
                rule = {"rule": f"self.matches(r'{child.pop('pattern')}')", "message": f"{SHAPES[name]} is expected"}
                child["x-kubernetes-validations"] = [rule]
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(schema["additionalProperties"], definitions, defaults)
        result["maxProperties"] = schema.get("maxProperties", 64)
    else:
        result[OPEN] = True


def job_schema() -> Schema:
    """Return the structural schema of a whole job."""
    source = JobStatus.model_json_schema()
    given = DistributedTrainingJob.model_json_schema()
    spec = structural(given["$defs"]["JobSpec"], given["$defs"], defaults=True)
    described = spec["properties"]["workers"]["properties"]["template"]
    described.update(TEMPLATE)
    spec["properties"]["recovery"]["properties"]["rules"]["items"]["x-kubernetes-validations"] = RULE_RULES
    status = structural(source, source["$defs"], defaults=False)
    _open_status(status)
    conditions = status["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    conditions["items"]["required"] = ["type", "status", "lastTransitionTime", "reason"]
    return {
        "description": "A distributed training job: ranks that train one model together, in pods that the operator"
        " creates, watches and replaces.",
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": NAME_LIMIT, "pattern": NAME_PATTERN}},
            },
            "spec": {"description": SPEC, **spec, "x-kubernetes-validations": SPEC_RULES},
            "status": {"description": STATUS, **status},
        },
    }


def _open_status(schema: Schema) -> None:
    """Change the schema in place so that no field is required and none is pruned: a status that another version
    wrote must stay valid and complete."""
    schema.pop("required", None)
    if "properties" in schema:
        schema[OPEN] = True
    for child in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(child, dict):
            _open_status(child)


def definition() -> Schema:
    """Return the CustomResourceDefinition of DistributedTrainingJob as JSON values."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{JOB_PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": JOB_KIND,
                "listKind": f"{JOB_KIND}List",
                "plural": JOB_PLURAL,
                "singular": JOB_KIND.lower(),
                "shortNames": ["dtj"],
                "categories": ["all", "training"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.workers.replicas",
                            "statusReplicasPath": ".status.workers.current",
                            "labelSelectorPath": ".status.workers.selector",
                        },
                    },
                    "additionalPrinterColumns": COLUMNS,
                    "schema": {"openAPIV3Schema": job_schema()},
                }
            ],
        },
    }


def render() -> str:
    """Return the text of the CRD file, as YAML with a header line."""
    import yaml  # Only writing the file needs yaml; the models do not.

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    body = yaml.dump(definition(), Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
    return f"# Generated from {API_VERSION} models by `make generate`. Don't edit.\n{body}"


def main(arguments: list[str] | None = None) -> int:
    """Write the CRD file into the given directory, or compare it with --check. Return 0, or 1 if the file is stale."""
    parser = argparse.ArgumentParser(prog="python -m trainmaster_operator.api.crd.crd_schema", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff when it is stale")
    options = parser.parse_args(arguments)
    path: Path = options.directory / FILE
    text = render()
    if not options.check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return 0
    current = path.read_text() if path.exists() else ""
    if current == text:
        return 0
    diff = difflib.unified_diff(
        current.splitlines(keepends=True), text.splitlines(keepends=True), str(path), "generated from the models"
    )
    sys.stdout.writelines(diff)
    sys.stderr.write(f"{path} is stale: run `make generate`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
