"""What docker/framework.Dockerfile installs for a framework: the packages of tests/frameworks/requirements.

    framework.py requirements FRAMEWORK   print what pip installs into the image
    framework.py headers                  print the package of apt that this Python needs to build others, if any
    framework.py build FRAMEWORK ROOT     build what is published as source alone, and install it below ROOT

It needs Python and pip alone, and runs at the top of a clone or of a copy of the files that it reads.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
REQUIREMENTS = ROOT / "tests" / "frameworks" / "requirements"
SOURCES = ("deepspeed", "horovod")
"""The packages that are built from source, for the torch that is installed."""

_ONLY_TO_BUILD = ("setuptools", "wheel", "cmake")
_HOROVOD_FOR = {"PYTORCH": "torch", "TENSORFLOW": "tensorflow", "MXNET": "mxnet"}
_HOROVOD_CHANGES = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    # This file has nothing for CPUs, and it includes headers of XLA that are not in the package of TensorFlow 2.21.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
)

# The operations that every script on CPUs needs, or those that use DeepSpeed's own Adam. All others, and all for GPUs,
# are compiled by DeepSpeed when a script first uses them, which needs a compiler in the image.
DEEPSPEED = {
    **{"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    **{f"DS_BUILD_{name}": "1" for name in ("SHM_COMM", "FUSED_ADAM", "CPU_ADAM")},
}
_EVERY_X86 = {"-march=native": "-march=x86-64-v3", "-mcpu=native": "", "-D__AVX512__": "-D__AVX256__"}
_EVERY_OTHER = {"-march=native": "", "-mcpu=native": ""}


class Unknown(Exception):
    """A framework that there is no image for, as one sentence."""


def read(framework: str) -> list[str]:
    """Return all requirements of a framework. Raises Unknown."""
    known = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    if framework not in known:
        given = f"FRAMEWORK={framework}: there is no image for it" if framework else "FRAMEWORK is missing"
        raise Unknown(f"{given}; give --build-arg FRAMEWORK=NAME with one of {', '.join(known)}")
    return (REQUIREMENTS / f"{framework}.txt").read_text(encoding="utf-8").split()


def of_image(framework: str) -> list[str]:
    """Return what pip installs into the image: all but what is built from source, and what only that needs."""
    return [each for each in read(framework) if _name(each) not in (*SOURCES, *_ONLY_TO_BUILD)]


def of_trainmaster() -> list[str]:
    """Return what `trainmaster run` needs where there is no cluster."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["local"]]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0]


def horovod_variables(requirements: Sequence[str]) -> dict[str, str]:
    """Return the variables with which Horovod builds for gloo and for the frameworks among the requirements alone."""
    names = {_name(each) for each in requirements}
    known = {f"HOROVOD_WITH{'' if package in names else 'OUT'}_{name}": "1" for name, package in _HOROVOD_FOR.items()}
    return {**known, "HOROVOD_WITHOUT_MPI": "1", "HOROVOD_WITH_GLOO": "1"}


def horovod_source(package: str, folder: str) -> Path:
    """Download and unpack Horovod into a folder, changed so that it builds for torch 2.15 and for TensorFlow 2.21 on
    CPUs. Return where it lies.

    Raises ValueError if this Horovod lacks one of the lines that are changed, or if `unpack` refuses its archive.
    """
    _pip("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder, package)
    (archive,) = Path(folder).glob("*.tar.gz")
    unpack(archive, folder)
    source = Path(folder, archive.name.removesuffix(".tar.gz"))
    for name, old, new in _HOROVOD_CHANGES:
        file = source / name
        text = file.read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{package}: {name} has no line {old.rstrip()}")
        file.write_text(text.replace(old, new), encoding="utf-8")
    return source


def unpack(archive: Path, folder: str) -> None:
    """Unpack the files of a package below a folder. Raises ValueError if a member is a link, or leaves the folder.

    The filters of tarfile check this as well, but the Python 3.11.2 of Debian 12 has none: they came with 3.11.4.
    """
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = Path(member.name)
            if not (member.isreg() or member.isdir()) or name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{archive.name}: {member.name} is no file or folder below the folder of the package")
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # without one, Python 3.12 and 3.13 warn
        tar.extractall(folder)


def portable_compiler(folder: str, compiler: str, machine: str) -> Path:
    """Write a compiler that builds for every CPU of an architecture, not only for the one that it runs on."""
    words = _EVERY_X86 if machine in ("x86_64", "amd64") else _EVERY_OTHER
    cases = " ".join(f'{old}) set -- "$@" {new} ;;' for old, new in words.items())
    path = Path(folder, compiler)
    loop = f'for word; do shift; case "$word" in {cases} *) set -- "$@" "$word" ;; esac; done'
    path.write_text(
        f'#!/bin/sh\n{loop}\nexec {shlex.quote(shutil.which(compiler) or compiler)} "$@"\n', encoding="utf-8"
    )
    path.chmod(0o755)
    return path


def build(framework: str, root: str) -> None:
    """Build and install what of a framework is published as source alone. Raises CalledProcessError."""
    wanted = read(framework)
    # Without the constraints: what is built here may need an older setuptools than all else is tested with.
    _pip("install", "--no-compile", *(each for each in wanted if _name(each) in _ONLY_TO_BUILD))
    install = ("install", "--no-compile", "--constraint", str(CONSTRAINTS))
    for package in (each for each in wanted if _name(each) in SOURCES):
        with tempfile.TemporaryDirectory() as folder:
            if _name(package) == "horovod":
                source, variables = str(horovod_source(package, folder)), horovod_variables(wanted)
            else:
                compilers = {
                    name: str(portable_compiler(folder, compiler, platform.machine()))
                    for name, compiler in (("CC", "gcc"), ("CXX", "g++"))
                }
                source, variables = package, DEEPSPEED | compilers
            _pip(*install, "--no-build-isolation", "--root", root, source, variables=variables)


def headers() -> str:
    """Return the package of apt with the headers of this Python; "" if it has them."""
    return "" if Path(sysconfig.get_path("include"), "Python.h").exists() else "python3-dev"


def _pip(*words: str, variables: Mapping[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", *words]
    subprocess.run(command, check=True, env={**os.environ, **(variables or {})})


def main(words: Sequence[str]) -> int:
    try:
        if words[0] == "requirements":
            print("\n".join([*of_image(words[1]), *of_trainmaster()]))
        elif words[0] == "headers":
            print(headers())
        else:
            build(words[1], words[2])
    except Unknown as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
