"""An environment for each framework, apart from the one of the repository: built by uv once, and found again by a hash.

A command that runs a job there has the repository's own code on its path, and what the command needs beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import tomllib

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
_LIMIT_S = 1800


def _framework_image() -> ModuleType:
    """Return docker/framework.py, which lies in no package."""
    spec = importlib.util.spec_from_file_location("framework_image", ROOT / "docker" / "framework.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


framework_image = _framework_image()


def folder() -> Path:
    """Where environments are kept: TRAINMASTER_ENVIRONMENTS, or a folder of the checkout that git ignores."""
    return Path(os.environ.get("TRAINMASTER_ENVIRONMENTS") or ROOT / "runs" / "environments")


def python_of(framework: str) -> Path:
    """Return the interpreter of a framework's environment, which is built if it isn't there. framework: the name of a
    file in `requirements`, or "" for the environment of the repository. Raises subprocess.CalledProcessError if
    something can't be installed."""
    if not framework:
        return Path(sys.executable)
    packages = [*(REQUIREMENTS / f"{framework}.txt").read_text().split(), *_command_needs()]
    content = "\n".join([sys.version, *packages])
    place = folder() / f"{framework}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    python, built = place / "bin" / "python", place / ".built"
    folder().mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _build(place, python, packages)
            built.touch()
    return python


def _build(place: Path, python: Path, packages: list[str]) -> None:
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(place))
    # A package that builds from source wants to see the torch that it is built for.
    late = {package for package in packages if package.split("==")[0] in _SOURCES}
    first = [package for package in packages if package not in late]
    _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *first)
    for package in sorted(late):
        _SOURCES[package.split("==")[0]](python, package)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    path = place / "lib" / version / "site-packages" / "checkout.pth"
    path.write_text(f"{ROOT / 'operator'}\n{ROOT / 'trainer'}\n")


def _build_deepspeed(python: Path, package: str) -> None:
    _uv("pip", "install", "--quiet", "--no-build-isolation", "--python", str(python), package, DS_BUILD_OPS="0")


def _build_horovod(python: Path, package: str) -> None:
    """Build Horovod as docker/framework.py does it for an image."""
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        source = framework_image.horovod_source(package, folder)
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # it has a cmake of its own
        _uv(
            *("pip", "install", "--quiet", "--no-build-isolation", "--python", str(python), str(source)),
            **framework_image.HOROVOD,
            PATH=path,
        )


_SOURCES = {"deepspeed": _build_deepspeed, "horovod": _build_horovod}


def _uv(*words: str, **variables: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *words], check=True, timeout=_LIMIT_S, env={**os.environ, **variables})


def _command_needs() -> list[str]:
    """What `trainmaster run` needs beside this repository, in the versions that the repository is tested with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *optional["operator"], *optional["cli"]]
    names = {re.split(r"[<>=\[;]", each)[0] for each in wanted} - {"trainmaster"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return sorted(line.split(";")[0].strip() for line in lines if line.split("==")[0] in names)
