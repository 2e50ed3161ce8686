"""Build the images of the operator and the trainer, push them to a registry, and write the values that install them.

`make images REGISTRY=registry.example.com/team TAG=0.1.0` runs it: the images are REGISTRY/operator:TAG and
REGISTRY/trainer:TAG. It needs `docker buildx` or `buildah`, logged in at the registry, and Python alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DOCKERFILES = REPOSITORY / "docker"
IMAGES = {"operator": "image", "trainer": "trainerImage"}
"""For each image, which is also its Dockerfile and the last stage in it, the key of the chart's values."""

BASE = "docker.io/library/python:3.12-slim"
PLATFORMS = ("linux/amd64", "linux/arm64")
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_EMULATORS = {"qemu-x86_64": "linux/amd64", "qemu-aarch64": "linux/arm64"}
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REGISTRY = re.compile(r"[a-z0-9]+([.-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


class PublishError(Exception):
    """Why the images can't be made, as one sentence."""


@dataclass(frozen=True)
class Order:
    """What is to be built. `torch`: what pip gets as torch; None: what the Dockerfile says."""

    registry: str
    tag: str
    platforms: tuple[str, ...]
    base: str = BASE
    torch: str | None = None
    options: tuple[str, ...] = ()
    plain_http: bool = False
    dockerfiles: Path = DOCKERFILES

    def reference(self, image: str) -> str:
        return f"{self.registry}/{image}:{self.tag}"


@dataclass(frozen=True)
class Builder:
    """`program`: the words that every command begins with."""

    program: tuple[str, ...]
    buildx: bool

    def commands(self, order: Order, image: str, result: Path) -> list[list[str]]:
        """Return the commands that build and push one image. The last one writes the digest of it to `result`."""
        reference = order.reference(image)
        words = [f"--platform={','.join(order.platforms)}", f"--file={order.dockerfiles / f'{image}.Dockerfile'}"]
        arguments = {
            "BASE": order.base,
            **({} if order.torch is None or image != "trainer" else {"TORCH": order.torch}),
        }
        words += [f"--target={image}", *(f"--build-arg={key}={value}" for key, value in arguments.items())]
        words += order.options
        if self.buildx:
            push = "--output=type=registry,registry.insecure=true" if order.plain_http else "--push"
            return [[*self.program, "build", *words, f"--tag={reference}", push, f"--metadata-file={result}", "."]]
        verify = ["--tls-verify=false"] if order.plain_http else []
        push = ["manifest", "push", "--all", *verify, f"--digestfile={result}", reference, f"docker://{reference}"]
        return [
            [*self.program, "bud", "--layers", *words, *verify, f"--manifest={reference}", "."],
            [*self.program, *push],
        ]

    def digest_in(self, result: str) -> str:
        """Return the digest of what was pushed."""
        return str(json.loads(result)["containerimage.digest"]) if self.buildx else result.strip()


def choose_platforms(
    asked: Sequence[str], own: str, of_base: Iterable[str] | None, runnable: Iterable[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the platforms to build for, and a sentence for each of the usual ones that is left out.

    asked: what a person wants, which is not questioned; empty: the usual ones as far as they can be built. of_base: the
    platforms of the base image; None: unknown. runnable: those whose programs this machine can run.
    """
    if asked:
        return tuple(asked), []
    chosen, left_out = [own], []
    for name in PLATFORMS:
        if name == own:
            continue
        if of_base is None:
            left_out.append(f"no image for {name}: the platforms of the base image are unknown")
        elif name not in of_base:
            left_out.append(f"no image for {name}: the base image has none")
        elif name not in runnable:
            left_out.append(
                f"no image for {name}: this machine has no emulator for it "
                "(docker run --privileged --rm tonistiigi/binfmt --install all)"
            )
        else:
            chosen.append(name)
    return tuple(sorted(chosen)), left_out


def platforms_in(index: str) -> set[str] | None:
    """Return the platforms of an image index; None for anything else, such as an image of one platform."""
    manifests = json.loads(index).get("manifests")
    if not isinstance(manifests, list):
        return None
    found = (entry.get("platform") or {} for entry in manifests)
    return {f"{each.get('os')}/{each.get('architecture')}" for each in found}


def values(order: Order, digests: dict[str, str]) -> str:
    """Return the chart's values that install these images, as YAML."""
    lines = ["# Written by `make images`. helm install ... --values FILE installs exactly these images."]
    for image, key in IMAGES.items():
        lines += [f"{key}:", f"  repository: {order.registry}/{image}", f'  tag: "{order.tag}"']
        lines += [f"  digest: {digests[image]}"]
    return "\n".join(lines) + "\n"


def publish(builder: Builder, order: Order, run: Callable[[list[str]], None]) -> dict[str, str]:
    """Build and push both images. Return their digests. `run` runs a command and raises PublishError if it fails."""
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        for image in IMAGES:
            result = Path(folder, image)
            if not builder.buildx:  # a list of an earlier build would be added to
                _output(*builder.program, "manifest", "rm", order.reference(image))
            *build, push = builder.commands(order, image, result)
            for command in build:
                run(command)
                _check_platforms(builder, order, image)
            run(push)
            digests[image] = builder.digest_in(result.read_text(encoding="utf-8"))
            if not _DIGEST.fullmatch(digests[image]):  # some versions of buildah exit with 0 when nobody answers
                raise PublishError(f"{order.reference(image)} was not pushed; what `{push[0]}` printed stands above")
    return digests


def _check_platforms(builder: Builder, order: Order, image: str) -> None:
    """Raise PublishError if a platform is missing in what buildah built: its cache may mix up those of equal layers."""
    reference = order.reference(image)
    found = platforms_in(_output(*builder.program, "manifest", "inspect", reference) or "{}") or set()
    missing = sorted(set(order.platforms) - found)
    if missing:
        raise PublishError(
            f"{reference} was built without {' and '.join(missing)}: give BUILD_OPTIONS=--layers=false, which builds "
            "without a cache"
        )


def find_builder(given: str) -> Builder:
    """Return the builder that was asked for, else the first that answers. Raises PublishError."""
    if given:
        program = shlex.split(given)
        return Builder(tuple(program), buildx="buildx" in program)
    if _output("docker", "buildx", "inspect") is not None:
        return Builder(("docker", "buildx"), buildx=True)
    if _output("buildah", "--version") is not None:
        return Builder(("buildah",), buildx=False)
    raise PublishError("neither `docker buildx` nor `buildah` works here: install one of them, and start docker")


def _own_platform() -> str:
    machine = platform.machine().lower()
    return f"linux/{_MACHINES.get(machine, machine)}"


def _runnable(builder: Builder) -> set[str]:
    if builder.buildx:
        told = _output(*builder.program, "inspect", "--bootstrap") or ""
        found = re.search(r"^Platforms:\s*(.+)$", told, re.MULTILINE)
        return {name.strip().rstrip("*") for name in found[1].split(",")} if found else set()
    handlers = Path("/proc/sys/fs/binfmt_misc")
    return {name for emulator, name in _EMULATORS.items() if (handlers / emulator).exists()}


def _platforms_of(builder: Builder, base: str) -> set[str] | None:
    words = ("imagetools", "inspect", "--raw", base) if builder.buildx else ("manifest", "inspect", f"docker://{base}")
    told = _output(*builder.program, *words)
    try:
        return platforms_in(told) if told else None
    except ValueError:
        return None


def _output(*command: str) -> str | None:
    """What a command prints; None if it fails or isn't there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _run(command: list[str]) -> None:
    sys.stderr.write(f"$ {shlex.join(command)}\n")
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        raise PublishError(f"`{shlex.join(command[:3])}` failed; what it printed stands above")


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="docker/publish.py", description=__doc__)
    add = parser.add_argument
    add("--registry", required=True, help="where the images go, with the project or folder there")
    add("--tag", required=True)
    add("--platforms", default="", help="such as linux/amd64,linux/arm64 (default: these, as far as possible here)")
    add("--builder", default="", help="such as 'docker buildx' or 'buildah --root /images' (default: what works here)")
    add("--base", default=BASE, help="image with Python 3.11 or newer and pip (default: %(default)s)")
    add("--torch", default=None, help="what pip gets as torch in the trainer's image (default: the pinned one)")
    add("--values", type=Path, default=Path("values-images.yaml"), help="file to write (default: %(default)s)")
    add("--options", default="", help="further words for the builder, such as '--network=host'")
    add("--plain-http", action="store_true", help="the registry has no TLS")
    add("--dockerfiles", type=Path, default=DOCKERFILES, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    asked = parse(words)
    try:
        if not _REGISTRY.fullmatch(asked.registry):
            raise PublishError(
                f"REGISTRY={asked.registry}: a registry without https:// is expected, such as registry.example.com/team"
            )
        if not _TAG.fullmatch(asked.tag):
            wrong = f"TAG={asked.tag}" if asked.tag else "TAG is missing"
            raise PublishError(f"{wrong}: letters, digits, '.', '_' and '-' are expected, such as TAG=0.1.0")
        builder = find_builder(asked.builder)
        given = [name for name in asked.platforms.split(",") if name]
        known = (None, ()) if given else (_platforms_of(builder, asked.base), _runnable(builder))
        platforms, left_out = choose_platforms(given, _own_platform(), *known)
        for sentence in left_out:
            sys.stderr.write(f"images: {sentence}\n")
        order = Order(
            registry=asked.registry,
            tag=asked.tag,
            platforms=platforms,
            base=asked.base,
            torch=asked.torch,
            options=tuple(shlex.split(asked.options)),
            plain_http=asked.plain_http,
            dockerfiles=asked.dockerfiles.resolve(),
        )
        digests = publish(builder, order, _run)
    except PublishError as error:
        sys.stderr.write(f"images: {error}\n")
        return 2
    asked.values.write_text(values(order, digests), encoding="utf-8")
    for image, digest in digests.items():
        print(f"{order.reference(image)}@{digest}  {' '.join(platforms)}")
    print(f"{asked.values} installs them: helm install ... --values {asked.values}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
