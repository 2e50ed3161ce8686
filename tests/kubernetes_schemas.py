"""Kubernetes' own schemas: whether an object has only fields that Kubernetes knows, with values of the right type.

The package `kubernetes_validate` has the schemas. Its function reads all definitions again for each object, which takes
far longer than the comparison. Here they are read once, and an object that many tests see is compared once.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate import utils
from referencing import Registry, Resource

VERSION = "1.36"
_FOLDER = f"kubernetes-json-schema/v{VERSION}.0-local-strict"


def problem(obj: dict[str, Any]) -> str:
    """Return what Kubernetes would refuse in an object; "" if it would take it."""
    return _problem(json.dumps(obj, sort_keys=True))


@cache
def _problem(text: str) -> str:
    obj = json.loads(text)
    try:
        validator = _validator(obj["kind"], obj["apiVersion"])
    except FileNotFoundError:
        return f"Kubernetes {VERSION} has no kind {obj['kind']} in {obj['apiVersion']}"
    errors = sorted(validator.iter_errors(obj), key=lambda error: list(map(str, error.absolute_path)))
    return "; ".join(f"{error.json_path}: {error.message}" for error in errors)


@cache
def _validator(kind: str, api_version: str) -> Draft202012Validator:
    # apps/v1 is apps-v1 in the name of a file, and rbac.authorization.k8s.io/v1 is rbac-v1.
    version = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{_FOLDER}/{kind.lower()}-{version}.json", VERSION)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions())


@cache
def _definitions() -> Registry[Any]:
    definitions = utils.schema_contents(f"{_FOLDER}/_definitions.json", VERSION)
    registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
    return registry.crawl()
