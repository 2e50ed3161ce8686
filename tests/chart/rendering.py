"""Renders the chart, and finds things in what comes out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from charts.generate import CHART, render

Object = dict[str, Any]
CHART_FILES = CHART / "files"

EVERYTHING: Object = {
    "imagePullSecrets": [{"name": "registry"}],
    "agentImage": {"repository": "somewhere/agent"},
    "serviceAccount": {"name": "operator"},
    "priorityClass": {"create": True},
    "metrics": {
        "readers": [{"name": "prometheus", "namespace": "monitoring"}],
        "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "scraper"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "networkPolicy": {"enabled": True},
    "certManager": {"enabled": True, "issuerRef": {"name": "our-ca"}},
}
"""All switches on."""


def ids(objects: list[Object]) -> set[tuple[str, str]]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects}


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    found = [obj for obj in objects if obj["kind"] == kind and name in (None, obj["metadata"]["name"])]
    if len(found) != 1:
        pytest.fail(f"{len(found)} objects are {kind} {name or ''}")
    return found[0]


def operator_pod(objects: list[Object]) -> Object:
    return only(objects, "Deployment")["spec"]["template"]["spec"]


def argument(objects: list[Object], name: str) -> str | None:
    """Of the operator's command line."""
    arguments = operator_pod(objects)["containers"][0]["args"]
    values = [text.partition("=")[2] for text in arguments if text.partition("=")[0] == f"--{name}"]
    return values[-1] if values else None


def values_file(name: str) -> Object:
    return yaml.safe_load((CHART / name).read_text())


__all__ = ["CHART_FILES", "EVERYTHING", "Object", "argument", "ids", "only", "operator_pod", "render", "values_file"]
