"""A small torch for the images: the pinned wheel, with stand-ins for the gigabytes of CUDA libraries that it asks for.

The package index has torch for Linux with CUDA alone; its libraries fill three gigabytes, and are only loaded, never
used, on a machine without a GPU. `TRAINMASTER_WHEELS` names a folder with another torch wheel to use instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.places import CACHE, REPOSITORY
from e2e.cluster.shell import ClusterError, run, say, write

MOUNT = "/wheels"  # where a build sees the parent of the folder
_KEPT = {"nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cufile", "nvidia-nvtx"}  # small; the first knows of no GPU
_KEPT_LIBRARIES = ("libcudart", "libcufile", "libcuda.")
_HOLDER = "nvidia-cublas"  # the package that carries all stand-ins; the others are left empty
_BUILD = "1"  # of two wheels of one version pip prefers the narrower tags, then the one with a build number
_LINKED = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl).*)\]")
_VERSIONS = re.compile(r"\b(File|Name): (\S+)")
_SOURCE = """\
int stand_in(void) { return 100; } /* cudaErrorNoDevice, and an error to every other library */
"""


def folder(run_in_base: Callable[[list[str], Path], None]) -> Path:
    """The folder whose wheels the images are built from."""
    given = os.environ.get("TRAINMASTER_WHEELS")
    if given:
        return Path(given).resolve()
    pins = _pins()
    key = hashlib.sha256(Path(__file__).read_bytes() + repr(sorted(pins.items())).encode()).hexdigest()[:16]
    done = CACHE / "wheels" / key
    if not done.exists():
        say("downloading torch, and making stand-ins for its CUDA libraries")
        shutil.rmtree(CACHE / "wheels", ignore_errors=True)
        partial = done.with_suffix(".partial")
        partial.mkdir(parents=True)
        words = [
            "python3",
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            f"--dest={MOUNT}/{partial.name}",
        ]
        run_in_base([*words, f"torch=={pins['torch']}"], partial.parent)
        _add_stand_ins(partial, pins)
        partial.rename(done)
    return done


def requirement(folder: Path) -> str:
    """What pip is asked for: the one torch of the folder, which is mounted at MOUNT. The words tell folders apart."""
    found = sorted(folder.glob("torch-*.whl"))
    if len(found) != 1:
        raise ClusterError(f"{folder} holds {len(found)} wheels of torch; one is expected")
    version = found[0].name.split("-")[1]
    torch = "torch" if version == _pins()["torch"] else f"torch=={version}"
    return f"{torch} --find-links {MOUNT}/{folder.name}"


def _pins() -> dict[str, str]:
    """The pinned versions of torch and of the packages to stand in for."""
    pins = {}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition(" ")[0].partition("==")
        if name in ("torch", "triton") or (name.startswith("nvidia-") and name not in _KEPT):
            pins[name] = version
    return pins


def _add_stand_ins(folder: Path, pins: dict[str, str]) -> None:
    wheel = next(folder.glob("torch-*.whl"))
    name, version, *tags = wheel.name.split("-")
    wheel = wheel.rename(folder / "-".join([name, version, _BUILD, *tags]))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        libraries = _libraries(wheel, Path(scratch))
        for package, pinned in pins.items():
            if package != "torch":
                files = libraries if package == _HOLDER else {}
                _write_wheel(folder, package, pinned, "-".join(tags).removesuffix(".whl"), files)


def _libraries(wheel: Path, scratch: Path) -> dict[str, bytes]:
    """For each CUDA library that torch is linked with, one that has every symbol that torch may look up in it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # What torch opens by itself once it has found a GPU is of no interest.
            if re.fullmatch(r"torch/lib/lib.*\.so[.0-9]*", name) and "nvrtc" not in name:
                archive.extract(name, scratch)
    needed: set[str] = set()
    defined: set[str] = set()
    wanted: dict[str, set[str]] = {}  # by version; "" for symbols without one
    versions: dict[str, set[str]] = {}  # by library
    for path in (scratch / "torch" / "lib").iterdir():
        needed |= set(_LINKED.findall(run("readelf", "--dynamic", "--wide", path)))
        defined |= {words[-1].partition("@")[0] for words in _symbols("--defined-only", path)}
        for words in _symbols("--undefined-only", path):
            symbol, _, version = words[-1].partition("@")
            if words[0] == "U":
                wanted.setdefault(version, set()).add(symbol)
        library = ""
        for kind, value in _VERSIONS.findall(run("readelf", "--version-info", "--wide", path)):
            library = value if kind == "File" else library
            if kind == "Name":
                versions.setdefault(library, set()).add(value)
    made = {}
    for library in sorted(name for name in needed if not name.startswith(_KEPT_LIBRARIES)):
        nodes = {version: wanted.get(version, set()) for version in versions.get(library, ())}
        symbols = wanted.get("", set()).union(*nodes.values()) - defined
        made[f"torch/lib/{library}"] = _stand_in(library, symbols, nodes, scratch)
    return made


def _stand_in(library: str, symbols: set[str], nodes: dict[str, set[str]], scratch: Path) -> bytes:
    aliases = [f'int {symbol}(void) __attribute__((alias("stand_in")));' for symbol in sorted(symbols)]
    source = write(scratch / "stand-in.c", "\n".join([_SOURCE, *aliases, ""]))
    # The loader insists on a library's own versions where a symbol was linked with one.
    script = "".join(
        f"{version} {{ {''.join(f'{name}; ' for name in sorted(nodes[version]))}}};\n" for version in nodes
    )
    flags = [f"-Wl,--version-script={write(scratch / 'versions', script)}"] if nodes else []
    out = scratch / library
    run("gcc", "-w", "-shared", "-fPIC", "-nostdlib", "-s", f"-Wl,-soname,{library}", *flags, "-o", out, source)
    return out.read_bytes()


def _symbols(kind: str, library: Path) -> list[list[str]]:
    return [line.split() for line in run("nm", "--dynamic", kind, library).splitlines()]


def _write_wheel(folder: Path, package: str, version: str, tags: str, files: dict[str, bytes]) -> None:
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\nBuild: {_BUILD}\n".encode(),
    }
    record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{stem}-{_BUILD}-{tags}.whl", "w") as archive:
        for name, data in {**content, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
