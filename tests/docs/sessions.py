"""The sessions of the pages: the commands that follow each other in one folder, and what that folder holds at first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import Block, Command, PageError, all_blocks
from tests.docs.matching import differences
from tests.docs.stages import STAGES, Stage

HOME = "/home/me"
DATA = "/data"
"""Folders that pages speak of. In a session they are the session's own folder, and `data` in it."""

Execute = Callable[[list[str], Path], tuple[int, str]]
"""Runs the words of a command in a folder. Returns the exit code, and all that it said."""


@dataclass(frozen=True)
class Session:
    """Blocks of one page. A block that names no session is one by itself, in an empty folder."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def commands(self) -> list[tuple[Block, Command]]:
        return [(block, command) for block in self.blocks for command in block.runnable]

    @property
    def stage(self) -> Stage:
        return STAGES.get(self.name, Stage())

    def play(self, folder: Path, execute: Execute) -> None:
        """Run all commands in `folder`, which is empty. Raises AssertionError for the first that isn't as shown."""
        stage = self.stage
        used: set[str] = set()
        to_come = {*stage.written}

        def made_smaller(text: str) -> str:
            for large, small in stage.smaller.items():
                used.update([large] if large in text else [])
                text = text.replace(large, small)
            return text.replace(HOME, str(folder)).replace(f"{DATA}/", f"{folder}/data/")

        stage.prepare(folder)
        for text in stage.first:
            code, said = execute(Command(text, ()).words, folder)
            assert code == 0, f"{self.name}: `{text}` ended with exit code {code}:\n{said}"
        for block in self.blocks:
            for name in block.values("file"):
                (folder / name).write_text(made_smaller(block.text) + "\n")
            for command in block.runnable:
                code, said = execute(Command(made_smaller(command.text), ()).words, folder)
                expected = 2 if any(line.startswith("trainmaster: ") for line in command.output) else 0
                assert code == expected, f"{block.where}: `{command.text}` ended with exit code {code}:\n{said}"
                shown = [made_smaller(line) for line in command.output]
                wrong = differences(shown, said, exact=block.has("exact"))
                assert not wrong, f"{block.where}: `{command.text}` says something else:\n{wrong}"
                for name in sorted(to_come):
                    if (file := folder / name).exists():
                        file.write_text(made_smaller(file.read_text()))
                        to_come.remove(name)
        assert not to_come, f"{self.name}: no command writes {sorted(to_come)}, which tests/docs/stages.py names"
        unused = sorted(set(stage.smaller) - used)
        assert not unused, f"{self.name}: no file and no command has {unused}, which tests/docs/stages.py makes smaller"


def sessions() -> dict[str, Session]:
    """Return the sessions of all pages by name. Raises PageError."""
    found: dict[str, list[Block]] = {}
    for block in all_blocks():
        if block.session:
            found.setdefault(f"{block.page}:{block.session}", []).append(block)
        elif block.has("file"):
            raise PageError(f"{block.where}: a file belongs to a session: <!-- session: ... -->")
        elif block.runnable:
            number = sum(name.startswith(f"{block.page}:block-") for name in found)
            found[f"{block.page}:block-{number + 1}"] = [block]
    return {name: Session(name, tuple(blocks)) for name, blocks in found.items()}
