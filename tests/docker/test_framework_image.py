"""Images of one framework each: what docker/framework.Dockerfile installs, and from where it has the versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.frameworks.environments import framework_image as image
from trainmaster.contract.launch.framework_packages import PACKAGES
from trainmaster_operator.api.job_spec import Framework

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "framework.Dockerfile").read_text()
NAMES = sorted(path.stem for path in image.REQUIREMENTS.glob("*.txt"))
STAGES = {re.findall(r"AS (\S+)", text)[0]: text for text in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docker" / "framework.py"), *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


def name_of(requirement: str) -> str:
    return re.split(r"[<>=]", requirement)[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [("caffe", "FRAMEWORK=caffe: there is no image for it; give"), ("", "FRAMEWORK is missing; give")],
)
def test_an_unknown_framework_ends_the_build_with_one_sentence(name: str, words: str) -> None:
    done = run("requirements", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{words} --build-arg FRAMEWORK=NAME with one of {', '.join(NAMES)}\n"


def test_each_framework_of_the_api_has_an_image() -> None:
    assert {each.value.lower() for each in Framework} - {"trainmaster"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_the_framework_and_what_the_command_needs_in_pinned_versions(name: str) -> None:
    got = run("requirements", name).stdout.split("\n")
    names = {name_of(each) for each in got}
    assert {"pydantic", "aiohttp", "pyyaml", "rich", "prometheus-client"} <= names
    (install,) = re.findall(r"pip install .*requirements.txt", STAGES["framework"])
    assert "-c constraints.txt" in install
    without_torch = ("horovod-tensorflow", "jax", "tensorflow", "xgboost")
    assert ("torch" in names) == (name not in without_torch)
    assert not {"setuptools", "wheel", "cmake", "deepspeed", "horovod"} & names


@pytest.mark.parametrize("name", NAMES)
def test_a_version_that_the_repository_pins_is_the_same_in_the_lists(name: str) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==([^ ;\n]+)(?: ;.*)?$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    given = {each for each in image.read(name) if name_of(each) in pinned and "==" in each}
    assert given == {f"{each}=={pinned[each]}" for each in map(name_of, given)}


def test_what_is_published_as_source_alone_is_built_in_a_stage_of_its_own() -> None:
    built = {name for name in NAMES if {name_of(each) for each in image.read(name)} & set(image.SOURCES)}
    (cases,) = re.findall(r'case "\$\{FRAMEWORK\}" in (\S+)\)', STAGES["build"])
    assert set(cases.split("|")) == built
    assert "g++" in STAGES["build"]
    assert "g++" not in STAGES["framework"] + STAGES["image"]
    assert STAGES["image"].startswith("framework AS image")


@pytest.mark.parametrize(("name", "package"), [("horovod", "PYTORCH"), ("horovod-tensorflow", "TENSORFLOW")])
def test_horovod_is_built_for_the_framework_of_its_image_alone(name: str, package: str) -> None:
    others = {"PYTORCH", "TENSORFLOW", "MXNET", "MPI"} - {package}
    expected = {f"HOROVOD_WITH_{package}", "HOROVOD_WITH_GLOO", *(f"HOROVOD_WITHOUT_{other}" for other in others)}
    assert image.horovod_variables(image.read(name)) == dict.fromkeys(expected, "1")


def test_the_build_finds_the_files_that_it_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in kept), source


def test_a_portable_compiler_takes_away_what_ties_a_build_to_one_cpu(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    path = image.portable_compiler(str(tmp_path / "bin"), "echo", "x86_64")
    words = ["-O2", "-march=native", "-mcpu=native", "-D__AVX512__", "-DNAME=a b", "x.cpp"]
    told = subprocess.run([path, *words], capture_output=True, text=True, check=True).stdout
    assert told == "-O2 -march=x86-64-v3 -D__AVX256__ -DNAME=a b x.cpp\n"
    on_arm = image.portable_compiler(str(tmp_path / "bin"), "echo", "aarch64")
    told = subprocess.run([on_arm, *words], capture_output=True, text=True, check=True).stdout
    assert told == "-O2 -D__AVX512__ -DNAME=a b x.cpp\n"


@pytest.mark.parametrize("framework", PACKAGES)
def test_an_example_names_the_image_as_the_pages_build_it(framework: str) -> None:
    name = framework.lower()
    job = yaml.safe_load((ROOT / "manifests" / "examples" / f"{name}.yaml").read_text())
    (container,) = job["spec"]["workers"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/team/{name}:1.0"
    page = (ROOT / "docs" / "frameworks" / f"{name}.md").read_text()
    assert "README.md#images" in page
