"""The shape of the part of a pod template that we read: it is an open map to the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainmaster_operator.api.problem import Path, Problem, instead, shown


def problems(template: Any) -> Iterator[Problem]:
    """The shape of the part of a pod template that we read."""
    where: Path = ("spec", "workers", "template")
    if not isinstance(template, dict):
        return  # absent, or the model says it
    spec = template.get("spec", {})
    where = (*where, "spec")
    if not isinstance(spec, dict):
        yield Problem(where, f"a map is expected, not {shown(spec)}")
        return
    for ours in ("hostname", "subdomain"):
        if ours in spec:
            yield Problem((*where, ours), "is set by the operator: leave it out")
    if spec.get("restartPolicy", "Never") != "Never":
        yield Problem((*where, "restartPolicy"), f"is Never or left out{instead(spec['restartPolicy'])}")
    containers = spec.get("containers", [])
    where = (*where, "containers")
    if not isinstance(containers, list) or ("containers" in spec and not containers):
        yield Problem(where, f"a list of containers is expected, not {shown(containers)}")
        return
    for i, container in enumerate(containers):
        yield from _container(container, (*where, i))


def _container(container: Any, where: Path) -> Iterator[Problem]:
    if not isinstance(container, dict):
        yield Problem(where, f"a map is expected, not {shown(container)}")
        return
    for key in ("command", "args"):
        value = container.get(key)
        if value is None:
            continue
        if not isinstance(value, list):
            example = json.dumps(str(value).split()) if isinstance(value, str) else '["python", "train.py"]'
            yield Problem((*where, key), f"a list is expected, for example {example}; not {shown(value)}")
            continue
        for i, word in enumerate(value):
            if not isinstance(word, str):
                yield Problem((*where, key, i), f"text is expected, not {shown(word)}: put it in quotes")
    env = container.get("env")
    if env is not None and not isinstance(env, list):
        yield Problem((*where, "env"), f"a list of name and value is expected, not {shown(env)}")
        return
    for i, variable in enumerate(env or []):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
            yield Problem((*where, "env", i), f"a map with a name and a value is expected, not {shown(variable)}")
        elif not isinstance(variable.get("value", ""), str):
            yield Problem(
                (*where, "env", i, "value"), f"text is expected, not {shown(variable['value'])}: put it in quotes"
            )
