"""What of the chart is generated: its copy of the CRD, the schema of its values, the table of values in its README, and
the plain-YAML install.

`python charts/generate.py` writes them; with `--check` it writes nothing and exits 1 with a diff when one is stale.
values.yaml is the one source of names, types, defaults and descriptions: "# -- " begins the description of the key
below, "# @schema " adds what a default can't tell (JSON Schema, in YAML's flow style).
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python
import yaml

from trainmaster_operator.api.crd import crd_schema

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "trainmaster"
NAMESPACE = "trainmaster-system"
RELEASE = "trainmaster"

Json = dict[str, Any]

DEFINITIONS: Json = {
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "duration": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
    "intOrPercent": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]},
    "quantities": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
    "resources": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "requests": {"$ref": "#/definitions/quantities"},
            "limits": {"$ref": "#/definitions/quantities"},
        },
    },
    "toleration": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": {"type": "string"},
            "operator": {"enum": ["Exists", "Equal"]},
            "value": {"type": "string"},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        },
    },
    "probe": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "integer", "minimum": 0}
            for name in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
        },
    },
}

FROM_PARENT: Json = {
    "global": {"type": "object", "description": "Helm hands a parent chart's global values down."},
    "enabled": {"type": "boolean", "description": "For the condition of a parent chart."},
}

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the CRD is long
_TYPES = {str: "string", bool: "boolean", int: "integer"}


class BadValues(Exception):
    """values.yaml doesn't say all that is needed."""


@dataclass
class Value:
    path: tuple[str, ...]
    default: Any
    description: str
    schema: Json | None  # what stands behind @schema
    children: list[Value] = field(default_factory=list)

    def leaves(self) -> Iterator[Value]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


def read_values(text: str) -> list[Value]:
    """The keys of a values.yaml with their comments. Raises BadValues."""
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise BadValues("values.yaml: a map is expected")
    return _children(root, text.splitlines(), ())


def _children(node: yaml.MappingNode, lines: list[str], path: tuple[str, ...]) -> list[Value]:
    return [_value(key, value, lines, (*path, key.value)) for key, value in node.value]


def _value(key: yaml.Node, node: yaml.Node, lines: list[str], path: tuple[str, ...]) -> Value:
    description, schema = _comments(lines, key.start_mark.line)
    default = yaml.safe_load(yaml.serialize(node))
    open_map = schema is not None or not default
    children = _children(node, lines, path) if isinstance(node, yaml.MappingNode) and not open_map else []
    if not children and not description:
        raise BadValues(f"values.yaml: {'.'.join(path)} has no description")
    if schema is None and default in ({}, []):
        raise BadValues(f"values.yaml: an empty {'.'.join(path)} doesn't tell what may stand in it: add @schema")
    return Value(path, default, description, schema, children)


def _comments(lines: list[str], line: int) -> tuple[str, Json | None]:
    """Of the key in that line: what the comment lines right above it say."""
    words: list[str] = []
    schema: Json | None = None
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        comment = lines[line].lstrip().removeprefix("#").strip()
        if comment.startswith("@schema "):
            schema = yaml.safe_load(comment.removeprefix("@schema "))
        else:
            words.insert(0, comment.removeprefix("-- "))
            if comment.startswith("-- "):
                return " ".join(words), schema
    return "", schema


def schema_of(values: list[Value]) -> str:
    """values.schema.json. In draft 7, which every Helm knows."""
    root = _object(values)
    root["properties"] |= FROM_PARENT
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Generated from values.yaml by `make generate`. Don't edit.",
        **root,
        "definitions": DEFINITIONS,
    }
    return json.dumps(whole, indent=2) + "\n"


def _object(values: list[Value]) -> Json:
    properties = {value.path[-1]: _schema(value) for value in values}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(value: Value) -> Json:
    if value.children:
        return _object(value.children)
    extra = value.schema or {}
    if "$ref" in extra:  # draft 7 sees nothing beside it
        return dict(extra)
    kind = "object" if isinstance(value.default, dict) else "array" if isinstance(value.default, list) else None
    described: Json = {"type": kind or _TYPES[type(value.default)], "description": value.description, **extra}
    if value.default not in ({}, []):
        described["default"] = value.default
    return described


def table_of(values: list[Value]) -> str:
    rows = ["| value | default | what it is |", "| --- | --- | --- |"]
    for value in (leaf for top in values for leaf in top.leaves()):
        default = json.dumps(value.default)
        shown = f"`{default}`" if len(default) <= 40 else "see values.yaml"
        rows.append(f"| `{'.'.join(value.path)}` | {shown} | {value.description.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def readme_with(table: str, readme: str) -> str:
    begin, end = "<!-- values: generated by `make generate` -->\n", "\n<!-- end of values -->"
    before, _, rest = readme.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise BadValues(f"README.md: no table between {begin.strip()} and {end.strip()}")
    return f"{before}{begin}{table}{end}{after}"


def render(
    values: Json | None = None, name: str = RELEASE, namespace: str = NAMESPACE, *, tests: bool = False
) -> list[Json]:
    """The objects of the operator, in the order of their files' names; with `tests` those of `helm test` instead.

    Raises HelmError.
    """
    with helm_python.Chart.load(CHART) as chart:
        manifests = chart.render(values or {}, name=name, namespace=namespace)
    paths = [path for path in sorted(manifests) if path.endswith(".yaml") and ("/tests/" in path) == tests]
    texts = (manifests[path] for path in paths)
    return [obj for text in texts for obj in yaml.load_all(text, Loader=_LOADER) if obj]


def plain_install() -> str:
    """Everything that `helm install` with the default values would make, and the namespace."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    objects = render({"crds": {"keep": False}})
    first = ("CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")
    objects.sort(key=lambda obj: first.index(obj["kind"]) if obj["kind"] in first else len(first))
    for obj in objects:
        _without_helm(obj)
    head = (
        "# Trainmaster without Helm: kubectl apply --server-side -f manifests/install.yaml\n"
        "# To uninstall, delete the namespace and the cluster roles. Deleting this whole file deletes the\n"
        "# CustomResourceDefinition too, and with it every training job.\n"
        "# Generated from charts/trainmaster by `make generate`. Don't edit.\n"
    )
    return head + yaml.dump_all([namespace, *objects], Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _without_helm(node: Any) -> None:
    """In place: takes away the labels that say that Helm looks after an object."""
    if isinstance(node, dict):
        if "app.kubernetes.io/managed-by" in node:
            del node["app.kubernetes.io/managed-by"], node["helm.sh/chart"]
        for child in node.values():
            _without_helm(child)
    elif isinstance(node, list):
        for child in node:
            _without_helm(child)


def generated() -> Iterator[tuple[Path, str]]:
    """In an order in which each is made from what stands before it."""
    values = read_values((CHART / "values.yaml").read_text())
    yield CHART / "files" / "crds" / crd_schema.FILE, crd_schema.render()
    yield CHART / "values.schema.json", schema_of(values)
    readme = CHART / "README.md"
    yield readme, readme_with(table_of(values), readme.read_text())
    yield ROOT / "manifests" / "install.yaml", plain_install()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python charts/generate.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff when one is stale")
    options = parser.parse_args(arguments)
    stale = 0
    for path, text in generated():
        current = path.read_text() if path.exists() else ""
        if current == text:
            continue
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            continue
        name = str(path.relative_to(ROOT))
        sys.stdout.writelines(
            difflib.unified_diff(current.splitlines(keepends=True), text.splitlines(keepends=True), name, "generated")
        )
        sys.stderr.write(f"{name} is stale: run `make generate`\n")
        stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
