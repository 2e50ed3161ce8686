"""What every Python process of a recording executes before anything else: it records what the process executes.

A copy of this file lies in the interpreter of the recording (see interpreter.py) and is imported by a .pth file, in
every process, whatever its environment. It uses the standard library only, and imports as little as it can. Modules of
ours are loaded as they were compiled with probes; files of the repository that are read as data are noted too.
"""

from __future__ import annotations

import builtins
import marshal
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FrameType
from typing import Any

NAME = "__reached__"
"""The name by which probes find the map: a built-in, so that it is at hand in every module."""

HEADER = "<qq"
"""Of kept code: the time of modification in ns and the size of the source that it was compiled from."""

HELD = 1
"""Bytes at the start of the map that stand for no block."""

CHANGED = 0
"""This byte of the map says that a source was changed during the recording, and what was executed is unknown."""

PLAN, CODE, MAP = "plan.marshal", "code", "reached.map"
"""In the folder of the interpreter: what to record, compiled code, the map."""

_SILENT = ("<frozen importlib", "/linecache.py", "/tokenize.py", "/_pytest/", "/importlib/", "/hypothesis/")
"""Who opens a source without using it as data: imports, tracebacks, the collection of tests, a search for constants."""

_BETWEEN = ("/pathlib.py", "/shutil.py", "/os.py", "/glob.py")
"""Who opens a file, or lists a folder, for somebody else."""


def kept_name(path: str) -> str:
    """Return the name under which the code of the module at `path`, relative to the repository, is kept."""
    return path.replace("/", "%")


class Loader(SourceFileLoader):
    """Loads a module of ours as it was compiled with probes, also for `python -m`."""

    recording: Recording

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code with probes; the plain code for a module that has none, or was changed meanwhile."""
        recording, path = self.recording, self.get_filename(fullname)
        relative = path.removeprefix(recording.root)
        try:
            with open(recording.code + kept_name(relative), "rb") as file:
                kept = file.read()
        except OSError:
            if relative not in recording.places and not relative.startswith(recording.ignored):
                recording.reached[CHANGED] = 1  # it is newer than the recording
            return super().get_code(fullname)
        found = os.stat(path)
        size = struct.calcsize(HEADER)
        if struct.unpack(HEADER, kept[:size]) != (found.st_mtime_ns, found.st_size):
            recording.reached[CHANGED] = 1
            return super().get_code(fullname)
        code: CodeType = marshal.loads(kept[size:])
        return code


class Recording:
    """What this process records, and where."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, PLAN), "rb") as file:
            plan: dict[str, Any] = marshal.load(file)
        self.root: str = plan["root"]  # ends with a slash
        self.folders: tuple[str, ...] = tuple(plan["folders"])
        self.ignored: tuple[str, ...] = tuple(plan["ignored"])  # folders of no interest
        self.code: str = plan["code"]
        self.places: dict[str, int] = plan["places"]  # byte of each file and folder that may be read as data
        with open(os.path.join(folder, MAP), "r+b") as file:
            self.reached = mmap.mmap(file.fileno(), 0)

    def find(self, path: str) -> FileFinder:
        """A path hook for the folders whose modules have probes. Raises ImportError for others."""
        ours = f"{path}/" == self.root or path.startswith(tuple(self.root + folder[:-1] for folder in self.folders))
        if not ours or not os.path.isdir(path):
            raise ImportError(path)
        return FileFinder(path, (Loader, [".py"]))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a file of the repository that is opened for reading, or a folder that is listed."""
        if event == "open":
            path, mode, _ = arguments
            if isinstance(mode, str) and not ("r" in mode or "+" in mode):
                return
        elif event in ("os.listdir", "os.scandir"):
            path = arguments[0]
        else:
            return
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if not isinstance(path, str):
            return
        if not path.startswith("/"):
            try:
                path = os.path.normpath(os.path.join(os.getcwd(), path))
            except OSError:
                return
        if not path.startswith(self.root):
            return
        place = self.places.get(os.path.normpath(path)[len(self.root) :])
        if place is not None and not self.reached[place] and not _is_silent(sys._getframe().f_back):
            self.reached[place] = 1


def _is_silent(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and any(part in frame.f_code.co_filename for part in _SILENT)


class Compiler:
    """Hides probes from torch.compile: it knows nothing of them, and would compile other graphs.

    What it compiles counts as reached, because the compiled code doesn't tell.
    """

    MODULE = "torch._dynamo.bytecode_transformation"

    def __init__(self, reached: mmap.mmap | bytearray) -> None:
        self.reached = reached

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Find the one module whose reading of code is changed; nothing for all others."""
        spec = PathFinder.find_spec(name, path, target) if name == self.MODULE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: Any) -> None:
                execute(module)
                read = module.cleaned_instructions
                module.cleaned_instructions = lambda *words, **options: self.hide(read(*words, **options))

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec

    def hide(self, instructions: list[Any]) -> list[Any]:
        """Put NOP for each probe: load 1, load the map, load a number, store. The places of jumps stay."""
        from opcode import opmap  # not before it is needed

        for index in range(1, len(instructions) - 2):
            if instructions[index].opname == "LOAD_GLOBAL" and instructions[index].argval == NAME:
                self.reached[instructions[index + 1].argval] = 1
                for one in instructions[index - 1 : index + 3]:
                    one.opcode, one.opname, one.arg, one.argval = opmap["NOP"], "NOP", None, None
        return instructions


def install(folder: str) -> None:
    """Begin to record in this process, and in all that it forks."""
    Loader.recording = recording = Recording(folder)
    setattr(builtins, NAME, recording.reached)
    sys.path_hooks.insert(0, recording.find)
    for path in list(sys.path_importer_cache):
        if f"{path}/".startswith(recording.root):
            del sys.path_importer_cache[path]
    sys.meta_path.insert(0, Compiler(recording.reached))
    sys.addaudithook(recording.audit)


if __name__ == "reach_startup":  # the copy
    install(sys.prefix)
