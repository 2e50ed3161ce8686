"""The interpreter of a recording: a virtual environment that lends all packages from the one at hand.

What a process records follows from the interpreter that runs it. Tests start processes with environments of their own
making, but always with `sys.executable`, or with the programs beside it. So nothing has to be told to a process, and no
test sees a variable that it would not see otherwise.
"""

from __future__ import annotations

import marshal
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.suite.reach import startup
from tests.suite.reach.facts import SUITE
from tests.suite.reach.probes import FOLDERS


class Interpreter:
    """One virtual environment, with one map. Two runs at a time need two."""

    def __init__(self, folder: Path, size: int) -> None:
        """Make it in `folder`; `size`: bytes of the map."""
        self.folder = folder
        self.size = size
        self.python = folder / "bin" / "python"
        ours = Path(sys.prefix)
        packages = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
        (folder / packages).mkdir(parents=True)
        (folder / "bin").mkdir()
        shutil.copy(ours / "pyvenv.cfg", folder)
        shutil.copy(Path(startup.__file__), folder / packages / "reach_startup.py")
        (folder / packages / "0.pth").write_text("import reach_startup\n")
        (folder / packages / "1.pth").write_text(f"import site; site.addsitedir({str(ours / packages)!r})\n")
        for program in (ours / "bin").iterdir():
            self._copy_program(program)

    def plan(self, root: Path, code: Path, places: Mapping[str, int]) -> None:
        """Say what processes record: code with probes in folders of `root`, and files read as data."""
        plan = {"root": f"{root}/", "folders": FOLDERS, "ignored": [SUITE], "code": f"{code}/", "places": dict(places)}
        (self.folder / startup.PLAN).write_bytes(marshal.dumps(plan))

    def clear(self) -> None:
        """Begin a new map. What still runs keeps the old one."""
        fresh = self.folder / "fresh.map"
        fresh.write_bytes(bytes(self.size))
        fresh.rename(self.folder / startup.MAP)

    def read(self) -> bytes:
        """Return the map: a byte that isn't 0 was reached."""
        return (self.folder / startup.MAP).read_bytes()

    def _copy_program(self, program: Path) -> None:
        """A script gets this interpreter in its first line; anything else is linked to."""
        target = self.folder / "bin" / program.name
        if program.name.startswith("python"):
            target.symlink_to(program.resolve())
            return
        head, end, rest = program.read_bytes().partition(b"\n")
        if head.startswith(b"#!") and str(Path(sys.prefix)).encode() in head:
            target.write_bytes(b"#!" + str(self.python).encode() + end + rest)
            target.chmod(0o755)
        else:
            target.symlink_to(program)
