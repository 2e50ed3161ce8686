"""What `make images REGISTRY=... TAG=...` builds, for which platforms, and what it writes for the chart."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.chart.rendering import argument, operator_pod, render

REPOSITORY = Path(__file__).parents[2]


def _module() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("publish", REPOSITORY / "docker" / "publish.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["publish"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


publish = _module()
DIGESTS = {"operator": f"sha256:{'a' * 64}", "trainer": f"sha256:{'b' * 64}"}


def order(**more: object) -> object:
    return publish.Order("registry.example.com/team", "1.2", ("linux/amd64", "linux/arm64"), **more)


def test_buildx_builds_and_pushes_in_one_command() -> None:
    (command,) = publish.Builder(("docker", "buildx"), buildx=True).commands(order(), "operator", Path("/r"))
    assert command[:3] == ["docker", "buildx", "build"]
    assert {"--platform=linux/amd64,linux/arm64", "--push", "--target=operator", "--metadata-file=/r"} <= set(command)
    assert "--tag=registry.example.com/team/operator:1.2" in command


def test_buildah_makes_a_list_of_images_and_pushes_all_of_them() -> None:
    build, push = publish.Builder(("buildah", "--root=/x"), buildx=False).commands(order(), "trainer", Path("/r"))
    name = "registry.example.com/team/trainer:1.2"
    assert build[:3] == ["buildah", "--root=/x", "bud"]
    assert {"--platform=linux/amd64,linux/arm64", f"--manifest={name}", "--target=trainer"} <= set(build)
    assert push[:5] == ["buildah", "--root=/x", "manifest", "push", "--all"]
    assert push[-3:] == ["--digestfile=/r", name, f"docker://{name}"]
    assert not any("tls-verify" in word for word in (*build, *push))


@pytest.mark.parametrize(
    ("buildx", "word"), [(True, "--output=type=registry,registry.insecure=true"), (False, "--tls-verify=false")]
)
def test_a_registry_without_tls_is_only_used_when_asked_for(buildx: bool, word: str) -> None:
    builder = publish.Builder(("b",), buildx=buildx)
    assert word in builder.commands(order(plain_http=True), "operator", Path("/r"))[-1]
    assert word not in builder.commands(order(), "operator", Path("/r"))[-1]


def test_only_the_trainers_image_is_given_a_torch_and_both_the_options() -> None:
    builder = publish.Builder(("b",), buildx=True)
    given = order(torch="torch --index-url https://x", options=("--network=host",), base="b")
    words = {image: builder.commands(given, image, Path("/r"))[0] for image in publish.IMAGES}
    assert all({"--network=host", "--build-arg=BASE=b"} <= set(command) for command in words.values())
    assert [any("TORCH" in word for word in command) for command in words.values()] == [False, True]


@pytest.mark.parametrize(
    ("asked", "of_base", "runnable", "chosen", "left_out"),
    [
        ((), {"linux/amd64", "linux/arm64"}, {"linux/arm64"}, ("linux/amd64", "linux/arm64"), ""),
        ((), {"linux/amd64", "linux/arm64"}, set(), ("linux/amd64",), "this machine has no emulator"),
        ((), {"linux/amd64"}, {"linux/arm64"}, ("linux/amd64",), "the base image has none"),
        ((), None, {"linux/arm64"}, ("linux/amd64",), "the platforms of the base image are unknown"),
        (("linux/arm64",), None, set(), ("linux/arm64",), ""),
    ],
)
def test_platforms_are_those_that_base_and_machine_can_do(
    asked: tuple[str, ...], of_base: set[str] | None, runnable: set[str], chosen: tuple[str, ...], left_out: str
) -> None:
    found, sentences = publish.choose_platforms(asked, "linux/amd64", of_base, runnable)
    assert found == chosen
    assert len(sentences) == bool(left_out)
    assert left_out in "".join(sentences)


def test_the_platforms_of_an_index_are_read_and_an_image_alone_has_none() -> None:
    entries = [{"os": "linux", "architecture": "amd64"}, {"os": "unknown", "architecture": "unknown"}]
    index = json.dumps({"manifests": [{"platform": each} for each in entries]})
    assert publish.platforms_in(index) == {"linux/amd64", "unknown/unknown"}
    assert publish.platforms_in('{"config": {}, "layers": []}') is None


def test_the_values_install_exactly_the_pushed_images() -> None:
    objects = render(yaml.safe_load(publish.values(order(), DIGESTS)))
    name = "registry.example.com/team"
    assert operator_pod(objects)["containers"][0]["image"] == f"{name}/operator@{DIGESTS['operator']}"
    assert argument(objects, "trainer-image") == f"{name}/trainer@{DIGESTS['trainer']}"
    assert argument(objects, "agent-image") == f"{name}/operator@{DIGESTS['operator']}"


def test_a_command_that_fails_writes_no_values_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = tmp_path / "values.yaml"
    words = ["--registry=r", "--tag=1", "--builder=false", "--platforms=linux/amd64", f"--values={values}"]
    assert publish.main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("images: `false bud --layers` failed")
    assert not values.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--registry=https://r", "--tag=1"], "REGISTRY=https://r: a registry without https:// is expected"),
        (["--registry=r/Team", "--tag=1"], "REGISTRY=r/Team: a registry without https:// is expected"),
        (
            ["--registry=r", "--tag="],
            "TAG is missing: letters, digits, '.', '_' and '-' are expected, such as TAG=0.1.0",
        ),
        (["--registry=r", "--tag=a/b"], "TAG=a/b: letters, digits, '.', '_' and '-' are expected, such as TAG=0.1.0"),
    ],
)
def test_a_wrong_registry_or_tag_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish.main(words) == 2
    assert sentence in capsys.readouterr().err
