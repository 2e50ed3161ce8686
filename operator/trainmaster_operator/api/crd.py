"""The CustomResourceDefinition, generated from the models.

`python -m trainmaster_operator.api.crd DIR` writes it, `--check DIR` exits 1 with a diff when the file is stale.
An API server wants a *structural* schema: no references, no unions, `nullable` instead of a null type, and either
listed properties or an open map. CEL rules repeat what the models' validators say across fields, so that a bad
manifest is refused even while the operator is down.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any

from trainmaster_operator.api.job import SHAPES, DistributedTrainingJob
from trainmaster_operator.api.meta import API_VERSION, GROUP, JOB_KIND, JOB_PLURAL, VERSION
from trainmaster_operator.api.printer_columns import COLUMNS
from trainmaster_operator.api.recovery_rules import NEEDS_ANOTHER_POD
from trainmaster_operator.api.status import JobStatus
from trainmaster_operator.api.validation import unused_options

Schema = dict[str, Any]

FILE = f"{JOB_PLURAL}.{GROUP}.yaml"
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LIMIT = 50
"""Maximum number of characters in the name of a job. A pod's hostname <job>-<role>-<slot> has at most 63 characters,
and "-worker-99999" takes 13 of them."""

# A bound of a schema is a double, which holds integers exactly up to here. A larger bound comes from the type itself
# and is left out.
_EXACT = 2**53

_KEPT = ("description", "enum", "maxItems", "maxLength", "minItems", "minLength", "pattern")

_POD = "self.workers.template.spec"
_NO_POD = f"!has(self.workers.template) || !has({_POD})"
_VOLUME = "self.checkpoint.volume"
_MESH = "self.training.parallelism"
_BATCH = "self.training.batch"
_WORLD = "self.workers.replicas * self.workers.ranksPerPod"
_INNER = " * ".join(f"(has({_MESH}.{axis}) ? {_MESH}.{axis} : 1)" for axis in ("pp", "cp", "tp"))
_DATA = f"({_WORLD}) / ({_INNER})"
"""Number of data-parallel ranks as a CEL expression. Each of them has its own share of the batch."""
_SHARDS = (
    f"(has({_MESH}.dpShard) ? {_MESH}.dpShard : has({_MESH}.dpReplicate) ? {_DATA} / {_MESH}.dpReplicate : 1)"
    f" * (has({_MESH}.cp) ? {_MESH}.cp : 1)"
)
_ELASTIC = "has(self.workers.min) || has(self.workers.max)"
_SAVES = "has(self.checkpoint.volume) || has(self.checkpoint.directory)"

_OPEN = "x-kubernetes-preserve-unknown-fields"


def _words(description: str) -> Schema:
    word = {"type": "string", "maxLength": 131072}
    return {"type": "array", "description": description, "maxItems": 1024, "items": word}


_CONTAINER = {
    "type": "object",
    _OPEN: True,
    "properties": {
        "name": {"type": "string", "description": "The name of the container in the pod.", "maxLength": 63},
        "image": {
            "type": "string",
            "description": "The container image. Default in the first container: the trainer's image, whatever the"
            " name of the container is.",
            "maxLength": 1024,
        },
        "command": _words(
            "The command of the container as a list of words. In the first container it is the command of each rank,"
            " which every framework but Trainmaster needs. Default in other containers: the entry point of the image."
        ),
        "args": _words("Arguments that follow the command, as a list of words. Default: the arguments of the image."),
    },
}


def _short(description: str) -> Schema:
    return {"type": "string", "description": description, "maxLength": 63}


TEMPLATE: dict[str, Any] = {
    "type": "object",
    _OPEN: True,
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods. Default: only those of the operator.",
            _OPEN: True,
        },
        "spec": {
            "type": "object",
            "description": "The specification of the pods, with all fields of a Kubernetes pod. volumes, volumeMounts"
            " and resources are used as in any pod: for example, resources.limits: {nvidia.com/gpu: 1} in the first"
            " container requests one GPU for each pod. The operator mounts /var/run/trainmaster, /opt/trainmaster,"
            " /var/lib/trainmaster/ram and, with checkpoint.volume, /checkpoints or checkpoint.directory; a volumeMount"
            " at one of these paths has no effect. kubectl explain pod.spec describes the fields that are not listed"
            " here.",
            _OPEN: True,
            "properties": {
                "restartPolicy": _short("Never, because the operator restarts the ranks. Default: Never."),
                "hostname": _short("The operator sets the host name of each pod. This field is refused."),
                "subdomain": _short("The operator sets the subdomain of each pod. This field is refused."),
                "containers": {
                    "type": "array",
                    "description": "The containers of each pod. The first one runs the ranks, and all others run beside"
                    " it. Default: one container, for framework Trainmaster.",
                    "minItems": 1,
                    "maxItems": 64,
                    "items": _CONTAINER,
                },
            },
        },
    },
}
"""The fields of a PodTemplate that our rules use. All other fields are an open map; the API server checks them when it
gets a pod."""

SPEC = (
    "What the job is to do. While ranks run, a change of the model, the data, the optimizer or the pod template waits"
    " until the job is resumed or restarted, and the condition RevisionPending names the fields that wait. Sizes,"
    " deadlines, recovery and scheduling change at once."
)

STATUS = (
    "What the operator found and did. Only the operator writes it. A field is absent if there is nothing to say. What"
    " the operator remembers for itself is in the block internal."
)

SPEC_RULES = [
    {
        "rule": "self.framework == oldSelf.framework",
        "message": "framework can't be changed: create another job",
    },
    {
        "rule": "has(self.managedBy) == has(oldSelf.managedBy)"
        " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "message": "managedBy can't be changed: create another job",
    },
    {
        "rule": "self.framework != 'Trainmaster' || has(self.training)",
        "message": "framework Trainmaster needs spec.training",
    },
    {
        "rule": "self.framework == 'Trainmaster' || !has(self.training)",
        "message": "spec.training belongs to framework Trainmaster only",
    },
    {
        "rule": "self.framework != 'Trainmaster' || !has(self.workers.restartCommand)",
        "message": "workers.restartCommand belongs to scripts: framework Trainmaster goes on from its checkpoints",
    },
    {
        "rule": f"self.framework == 'Trainmaster' || (!({_NO_POD}) && has({_POD}.containers)"
        f" && {_POD}.containers.size() > 0"
        f" && (has({_POD}.containers[0].command) || has({_POD}.containers[0].args)))",
        "message": "every framework but Trainmaster needs workers.template.spec.containers[0].command,"
        " for example [python, train.py]",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.restartPolicy) || {_POD}.restartPolicy == 'Never'",
        "message": "workers.template.spec.restartPolicy is Never or left out",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.hostname)",
        "message": "workers.template.spec.hostname is set by the operator: leave it out",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.subdomain)",
        "message": "workers.template.spec.subdomain is set by the operator: leave it out",
    },
    {
        "rule": "oldSelf.suspend || self.workers.replicas == oldSelf.workers.replicas"
        f" || (self.framework == 'Trainmaster' ? {_SAVES} : {_ELASTIC})",
        "message": "workers.replicas can be changed only while the job is suspended, unless it has a place for"
        " checkpoints, or, as a script's, workers.min or workers.max",
    },
    {
        "rule": "!has(self.workers.min) || self.workers.min <= self.workers.replicas",
        "message": "workers.replicas must be at least workers.min",
    },
    {
        "rule": "!has(self.workers.max) || self.workers.replicas <= self.workers.max",
        "message": "workers.replicas must be at most workers.max",
    },
    {
        "rule": "self.workers.replicas + self.workers.spares <= 100000",
        "message": "workers.replicas and workers.spares are more than 100000 pods",
    },
    {
        "rule": "oldSelf.suspend || !has(self.training) || !has(oldSelf.training)"
        f" || ({_MESH} == oldSelf.training.parallelism && self.training.batch == oldSelf.training.batch)",
        "message": "training.parallelism and training.batch can be changed only while the job is suspended",
    },
    {
        "rule": "oldSelf.suspend || self.workers.ranksPerPod == oldSelf.workers.ranksPerPod",
        "message": "workers.ranksPerPod can be changed only while the job is suspended",
    },
    {
        "rule": f"!has({_VOLUME}) || has({_VOLUME}.claim) != has({_VOLUME}.hostPath)",
        "message": "checkpoint.volume: exactly one of claim and hostPath is expected",
    },
    {
        "rule": f"!has({_VOLUME}) || !has(self.checkpoint.directory) || self.checkpoint.directory.startsWith('/')",
        "message": "checkpoint.directory must be an absolute path to mount a volume",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || ({_WORLD}) % ({_INNER}) == 0",
        "message": "training.parallelism: pp x cp x tp must divide workers.replicas x workers.ranksPerPod",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpReplicate) || !has({_MESH}.dpShard)"
        f" || {_MESH}.dpReplicate * {_MESH}.dpShard * {_INNER} == {_WORLD}",
        "message": "training.parallelism: dpReplicate x dpShard x pp x cp x tp must be workers.replicas x"
        " workers.ranksPerPod",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpReplicate) || has({_MESH}.dpShard)"
        f" || ({_DATA}) % {_MESH}.dpReplicate == 0",
        "message": "training.parallelism: dpReplicate must divide workers.replicas x workers.ranksPerPod /"
        " (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpShard) || has({_MESH}.dpReplicate)"
        f" || ({_DATA}) % {_MESH}.dpShard == 0",
        "message": "training.parallelism: dpShard must divide workers.replicas x workers.ranksPerPod / (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.ep) || ({_WORLD}) % ({_INNER}) != 0"
        f" || ({_SHARDS}) % {_MESH}.ep == 0",
        "message": "training.parallelism: ep must divide dpShard x cp",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || {_DATA} < 1 || has({_BATCH}.scaling)"
        f" || {_BATCH}.global % ({_DATA}) == 0",
        "message": "training.batch.global must be a multiple of workers.replicas x workers.ranksPerPod /"
        " (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_BATCH}.micro) || {_DATA} < 1 || {_BATCH}.global"
        f" % ((has({_BATCH}.scaling) ? {_BATCH}.scaling.ranks / ({_INNER}) : {_DATA}) * {_BATCH}.micro) == 0",
        "message": "training.batch.micro must divide each rank's share of training.batch.global",
    },
    {
        "rule": f"!has(self.training) || !has({_BATCH}.scaling) || {_BATCH}.global % {_BATCH}.scaling.ranks == 0",
        "message": "training.batch.global must be a multiple of training.batch.scaling.ranks",
    },
    {
        "rule": "!has(self.training) || self.training.optimizer.warmupSteps < self.training.steps",
        "message": "training.optimizer.warmupSteps must be lower than training.steps",
    },
    {
        "rule": "!has(self.training) || !self.checkpoint.keepBest || has(self.training.evaluation)",
        "message": "checkpoint.keepBest: the best checkpoint is known by its evaluation loss;"
        " training.evaluation is missing",
    },
    *unused_options.CEL_RULES,
]

_RULES = "self.recovery.rules"
SPEC_RULES += [
    {
        "rule": f"self.framework == 'Trainmaster' || !has({_RULES}) || {_RULES}.all(r, r.action != 'SkipData')",
        "message": "recovery.rules: SkipData belongs to framework Trainmaster: a script's samples aren't known",
    },
    {
        "rule": f"has(self.workers.min) || !has({_RULES}) || {_RULES}.all(r, r.action != 'Shrink')",
        "message": "recovery.rules: Shrink needs workers.min, the fewest pods to go on with",
    },
]

RULE_RULES = [
    {
        "rule": "self.action != 'SkipData' || (has(self.causes) && self.causes == ['Diverged'])",
        "message": "SkipData needs causes: [Diverged], because only this cause tells which samples to skip",
    },
    {
        "rule": "self.action != 'RestartInPlace' || !has(self.causes)"
        f" || !self.causes.exists(c, c in {list(NEEDS_ANOTHER_POD)})",
        "message": "RestartInPlace cannot recover from a cause that needs another pod; use ReplacePod",
    },
]


def structural(schema: Schema, definitions: dict[str, Schema], defaults: bool) -> Schema:
    """Return a pydantic JSON schema as a structural schema. `defaults`: keep default values, so that a stored job shows
    them. Raise ValueError for a union of several types."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        # The docstring of a model is for developers. The description of the field, which stands in `schema`, is for
        # users.
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
        result[_OPEN] = True


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
    """Change the schema in place so that no field is required and none is pruned: a status that another version wrote
    must stay valid and complete."""
    schema.pop("required", None)
    if "properties" in schema:
        schema[_OPEN] = True
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
    parser = argparse.ArgumentParser(prog="python -m trainmaster_operator.api.crd", description=__doc__)
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
