"""docs/fields.md: all fields of a job, from the schema of the CustomResourceDefinition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainmaster_operator.api.crd import cel_rules, crd_schema

Schema = dict[str, Any]

_HEAD = """# All fields of a job

<!-- Made from the models of the API by `make generate`. Don't edit. -->

Each field of `spec`, with its type, its default and what it does. A field that a job leaves out has its default, and a
field that does not exist is refused. Times are whole seconds. The smallest job is on the page [Install and run a first
job](first-job.md), and [Example jobs](examples.md) shows longer ones. `kubectl explain dtj.spec --recursive` prints the
same on a cluster. [Change a running job](editing.md) says which fields can be changed while the job runs, and [Read the
status of a job](status.md) has the fields of `status`.
"""

_LAST = """
## What is refused

A job is refused if one of its fields has a wrong value. It is also refused if its fields do not fit together:
"""

_UNBOUNDED = 2**53
"""The bound of an integer that nobody has limited: the largest one that JSON holds exactly."""

_TYPES = {"boolean": "true or false", "integer": "integer", "number": "number", "string": "text"}


def render() -> str:
    """Return the text of the page."""
    schema = crd_schema.job_schema()["properties"]["spec"]
    names = _Names([path for path, _ in _fields(schema)])
    single = {name: child for name, child in schema["properties"].items() if not _has_fields(child)}
    blocks = {name: child for name, child in schema["properties"].items() if _has_fields(child)}
    parts = [_HEAD]
    for name, child in blocks.items():
        parts += _block(name, child, 2, names)
    parts += ["\n## Other fields of spec\n\n", *(_line(name, child, False, names) for name, child in single.items())]
    messages = [*(rule["message"] for rule in (*cel_rules.SPEC_RULES, *cel_rules.RULE_RULES))]
    parts += [_LAST, "\n", *(f"- {names.in_code(message)}\n" for message in messages)]
    return "".join(parts)


class _Names:
    """The paths of all fields, so that sentences can show them as code."""

    def __init__(self, paths: list[str]) -> None:
        known = sorted({path.replace("[]", "") for path in paths if "." in path}, key=len, reverse=True)
        name = rf"(?:spec\.)?(?:{'|'.join(map(re.escape, known))})(?:\[\d\][.\w]*\w)?"
        self._pattern = re.compile(rf"(?<![\w.])({name})(?!\w|\.\w)")

    def in_code(self, text: str) -> str:
        """Return a sentence as Markdown: names of fields as code, and nothing else with a meaning of its own."""
        parts = self._pattern.split(" ".join(text.split()))
        return "".join(f"`{part}`" if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _fields(schema: Schema, before: str = "") -> Iterator[tuple[str, Schema]]:
    for name, child in schema.get("properties", {}).items():
        path = f"{before}.{name}" if before else name
        yield path, child
        yield from _fields(child, path)
        yield from _fields(child.get("items", {}), f"{path}[]")


def _has_fields(schema: Schema) -> bool:
    return bool(schema.get("properties") or schema.get("items", {}).get("properties"))


def _block(path: str, schema: Schema, level: int, names: _Names) -> Iterator[str]:
    """A heading for a field that has fields, these fields as a list, and then the blocks within it."""
    item = schema if schema.get("properties") else schema["items"]
    inner = path if item is schema else f"{path}[]"
    yield f"\n{'#' * min(level, 4)} {path}\n\n{_sentences(schema, names)}"
    if item is not schema:
        yield " It is a list, and each entry has these fields:"
    yield "\n\n"
    required = item.get("required", [])
    within = item["properties"]
    yield from (_line(f"{inner}.{name}", child, name in required, names) for name, child in within.items())
    for name, child in within.items():
        if _has_fields(child):
            yield from _block(f"{inner}.{name}", child, level + 1, names)


def _line(path: str, schema: Schema, required: bool, names: _Names) -> str:
    name = path.rpartition(".")[2]
    told = ", ".join([_type(schema), *(["required"] if required else []), *_limits(schema)])
    if _has_fields(schema):
        return f"- **`{name}`** ({told}): see [{path}](#{path.replace('.', '').replace('[]', '').lower()}).\n"
    return f"- **`{name}`** ({told}): {_sentences(schema, names)}\n"


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_plural(schema['items'])}"
    return "object" if schema["type"] == "object" else _TYPES[schema["type"]]


def _plural(items: Schema) -> str:
    return {"string": "texts", "integer": "integers", "number": "numbers"}.get(items["type"], "objects")


def _limits(schema: Schema) -> Iterator[str]:
    if "minimum" in schema:
        yield f"{'above' if schema.get('exclusiveMinimum') else 'at least'} {schema['minimum']}"
    if schema.get("maximum", _UNBOUNDED) < _UNBOUNDED:
        yield f"{'below' if schema.get('exclusiveMaximum') else 'at most'} {schema['maximum']}"


def _sentences(schema: Schema, names: _Names) -> str:
    """The description, in which links to pages and names of fields are marked."""
    text = names.in_code(schema.get("description", ""))
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def _escaped(text: str) -> str:
    return re.sub(r"([*<\\])", r"\\\1", text)
