"""docs/api.md: the API of `import trainmaster as tm`, from the docstrings. The sources are read and not imported, since
torch would come with them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("trainer") / "trainmaster"

_HEAD = """# The API of tm

<!-- Made from the docstrings of the package trainmaster by `make generate`. Don't edit. -->

What a script of yours can use after `import trainmaster as tm`. Nothing of it is needed: a script that knows nothing of
Trainmaster runs as well ([Run a script](scripts.md)). [Come from another system](coming-from.md) shows a whole loop.
Under plain `python` all of it works as well, without an agent and without a job.
"""

_MORE = {
    "init": ("trainmaster.train.user_loop", "Run"),
    "parallelize": ("trainmaster.parallel.forward_and_backward", "Parallel"),
}
"""What a function returns, where people use it and do not make it themselves."""


class ApiError(Exception):
    """What the page can't be made of, as one sentence."""


def render(root: Path) -> str:
    """Return the text of the page. Raises ApiError for a public name without a docstring."""
    names = _public(_parsed(root, "trainmaster"))
    parts = [_HEAD]
    for name, module in names.items():
        if (module, name) in _MORE.values():
            continue
        parts.append(_section(root, module, name, f"tm.{name}"))
        if name in _MORE:
            more, within = _MORE[name]
            parts.append(_section(root, more, within, f"tm.{within}" if within in names else within))
    return "".join(parts)


def _parsed(root: Path, module: str) -> ast.Module:
    path = (root / PACKAGE).joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def _public(package: ast.Module) -> dict[str, str]:
    """The names of the package with their modules, as its table `_LAZY` has them."""
    for node in package.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_LAZY":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ApiError("the package trainmaster has no table _LAZY of its names")


def _section(root: Path, module: str, name: str, title: str) -> str:
    body = _parsed(root, module).body
    nodes = [node for node in body if getattr(node, "name", "") == name]
    if not nodes:
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
                return _section(root, node.module, name, title)
        raise ApiError(f"{module} has no {name}")
    node = nodes[-1]  # overloads come before the function itself
    if isinstance(node, ast.FunctionDef):
        return f"\n## {title}\n\n`{name}{_signature(node)}`\n\n{_text(node, name)}\n"
    if isinstance(node, ast.ClassDef):
        return "".join(_class(node, name, title))
    raise ApiError(f"{module}.{name} is neither a function nor a class")


def _class(node: ast.ClassDef, name: str, title: str) -> Iterator[str]:
    yield f"\n## {title}\n\n{_text(node, name)}\n"
    for member, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in member.decorator_list)
            shown = member.name if is_property else member.name + _signature(member)
            yield f"\n### {name}.{member.name}\n\n`{shown}`\n\n{_text(member, f'{name}.{member.name}')}\n"
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and isinstance(below, ast.Expr):
            field, told = member.target.id, inspect.cleandoc(ast.literal_eval(below.value))
            yield f"\n### {name}.{field}\n\n`{field}: {ast.unparse(member.annotation)}`\n\n{_paragraphs(told)}\n"


def _signature(node: ast.FunctionDef) -> str:
    """The arguments with their types, without `self`, and what is returned."""
    arguments = re.sub(r"^self(?:, )?", "", ast.unparse(node.args)).replace("=", " = ")
    return f"({arguments}){f' -> {ast.unparse(node.returns)}' if node.returns else ''}"


def _text(node: ast.FunctionDef | ast.ClassDef, name: str) -> str:
    told = ast.get_docstring(node)
    if not told:
        raise ApiError(f"{name} is public and has no docstring")
    return _paragraphs(told)


def _paragraphs(text: str) -> str:
    """The docstring as Markdown. Its indented code becomes a block, and its sentences keep their lines."""
    parts = []
    for paragraph in re.split(r"\n{2,}", text.strip()):
        code = all(line.startswith("    ") for line in paragraph.splitlines())
        parts.append(paragraph if code else re.sub(r"(?<![\\`])([<|])", r"\\\1", paragraph))
    return "\n\n".join(parts)
