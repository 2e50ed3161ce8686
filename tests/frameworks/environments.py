"""An environment for each framework, apart from the one of the repository.

uv installs the packages of a framework once, into a cache that all checkouts share; a hash of what was asked for finds
them again. Each checkout has an environment of its own, which holds nothing but the paths to these packages and to the
code of the checkout.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import tomllib

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
_PACKAGES = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
_LIMIT_S = 3600  # a build of seven minutes takes longer where it gets only the processor time that tests leave


def cache() -> Path:
    """Return the folder with the installed packages. TRAINMASTER_ENVIRONMENTS names another one."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TRAINMASTER_ENVIRONMENTS") or home / "trainmaster-tests" / "frameworks")


def _framework_image() -> ModuleType:
    """Return docker/framework.py, which lies in no package."""
    spec = importlib.util.spec_from_file_location("framework_image", ROOT / "docker" / "framework.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


framework_image = _framework_image()


def python_of(framework: str) -> Path:
    """Return this checkout's interpreter that has a framework, which is installed if it isn't there yet.

    framework: the name of a file in `requirements`, or "" for the environment of the repository. Raises
    subprocess.CalledProcessError if something can't be installed.
    """
    if not framework:
        return Path(sys.executable)
    packages = [*(REQUIREMENTS / f"{framework}.txt").read_text().split(), *_command_needs()]
    content = "\n".join([sys.version, *packages])
    name = f"{framework}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    installed, own = cache() / name, ROOT / "runs" / "environments" / name
    with _building(installed) as is_new:
        if is_new:
            _install(installed, packages)
    with _building(own) as is_new:
        if is_new:
            _connect(own, installed)
    return own / "bin" / "python"


@contextmanager
def _building(place: Path) -> Iterator[bool]:
    """Hold the lock of an environment, and yield True if it isn't complete. After the block it is."""
    place.parent.mkdir(parents=True, exist_ok=True)
    built = place / ".built"
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_new = not built.exists()
        yield is_new
        built.touch()


def _connect(own: Path, installed: Path) -> None:
    """Make an environment that has the packages and the commands of another one, and the code of this checkout."""
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(own))
    paths = [
        str(ROOT / "operator"),
        str(ROOT / "trainer"),
        f"import site; site.addsitedir({str(installed / _PACKAGES)!r})",
    ]
    (own / _PACKAGES / "checkout.pth").write_text("\n".join([*paths, ""]))
    for program in (installed / "bin").iterdir():
        copy = own / "bin" / program.name
        if copy.exists() or program.is_symlink() or not program.is_file():
            continue
        # What starts Python does so by the path of its environment.
        copy.write_bytes(program.read_bytes().replace(bytes(installed), bytes(own)))
        copy.chmod(0o755)


def _install(place: Path, packages: list[str]) -> None:
    python = place / "bin" / "python"
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(place))
    # A package that builds from source wants to see the framework that it is built for.
    late = {package for package in packages if package.split("==")[0] in _SOURCES}
    first = [package for package in packages if package not in late]
    # Modules are compiled when they are imported first: few of them ever are.
    _uv("pip", "install", "--quiet", "--python", str(python), *first)
    for package in sorted(late):
        _SOURCES[package.split("==")[0]](python, package, first)


def _build_deepspeed(python: Path, package: str, installed: list[str]) -> None:
    _uv("pip", "install", "--quiet", "--no-build-isolation", "--python", str(python), package, DS_BUILD_OPS="0")


def _build_horovod(python: Path, package: str, installed: list[str]) -> None:
    """Build Horovod as docker/framework.py does it for an image."""
    with tempfile.TemporaryDirectory(prefix="horovod-") as folder:
        source = framework_image.horovod_source(package, folder)
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # it has a cmake of its own
        _uv(
            *("pip", "install", "--quiet", "--no-build-isolation", "--python", str(python), str(source)),
            **framework_image.horovod_variables(installed),
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
