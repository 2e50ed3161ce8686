"""Images of one framework each: what docker/framework.Dockerfile installs, and from where it has the versions."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

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


def publish_horovod(monkeypatch: pytest.MonkeyPatch, *more: tarfile.TarInfo, without: str = "") -> None:
    """Let pip download a Horovod that has the lines to change and nothing else, but `more` members."""

    def download(*words: str, **given: Any) -> None:
        texts: dict[str, str] = {}
        for name, old, _ in image._HOROVOD_CHANGES:
            texts[name] = texts.get(name, "") + (old if name != without else "") + "\n"
        with tarfile.open(Path(words[words.index("--dest") + 1], "horovod-0.28.1.tar.gz"), "w:gz") as tar:
            for name, text in texts.items():
                member = tarfile.TarInfo(f"horovod-0.28.1/{name}")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
            for member in more:
                tar.addfile(member)

    monkeypatch.setattr(image, "_pip", download)


def test_horovod_is_changed_by_a_python_whose_tarfile_has_no_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract = tarfile.TarFile.extractall

    def extract_by_python_3_11_2(
        self: tarfile.TarFile, path: str = ".", members: Sequence[tarfile.TarInfo] | None = None
    ) -> None:
        extract(self, path, members)

    monkeypatch.setattr(tarfile.TarFile, "extractall", extract_by_python_3_11_2)
    monkeypatch.delattr(tarfile, "data_filter")
    publish_horovod(monkeypatch)
    source = image.horovod_source("horovod==0.28.1", str(tmp_path))
    for name, old, new in image._HOROVOD_CHANGES:
        text = (source / name).read_text()
        assert (old in text, new in text) == (False, True)


def test_another_horovod_that_lacks_a_line_to_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_horovod(monkeypatch, without="CMakeLists.txt")
    with pytest.raises(ValueError, match=r"^horovod==0.29: CMakeLists.txt has no line set\(CMAKE_CXX_STANDARD 14\)$"):
        image.horovod_source("horovod==0.29", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("horovod-0.28.1/../../outside", tarfile.REGTYPE, ""),
        ("{folder}/outside", tarfile.REGTYPE, ""),
        ("horovod-0.28.1/link", tarfile.SYMTYPE, "../.."),
        ("horovod-0.28.1/link", tarfile.LNKTYPE, "../outside"),
        ("horovod-0.28.1/fifo", tarfile.FIFOTYPE, ""),
    ],
)
def test_an_archive_with_a_link_or_a_file_elsewhere_is_refused_before_it_is_unpacked(
    name: str, kind: bytes, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = tarfile.TarInfo(name.format(folder=tmp_path))
    member.type, member.linkname = kind, target
    publish_horovod(monkeypatch, member)
    (tmp_path / "inside").mkdir()
    with pytest.raises(ValueError, match=f"^horovod-0.28.1.tar.gz: {re.escape(member.name)} is no file or folder"):
        image.horovod_source("horovod==0.28.1", str(tmp_path / "inside"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["horovod-0.28.1.tar.gz", "inside"]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), ["apt-get", "apt-get", "rm", "ln -s {bin}/python3 /usr/local/bin/python"]),
        (("python3",), ["ln -s {bin}/python3 /usr/local/bin/python"]),
        (("python3", "python"), []),
    ],
)
def test_a_base_gets_python_and_its_two_names_unless_it_has_them(
    there: Sequence[str], expected: Sequence[str], tmp_path: Path
) -> None:
    (first,) = re.findall(r"\nRUN ((?:.*\\\n)*.*)", STAGES["framework"].partition("COPY")[0])
    (tmp_path / "bin").mkdir()
    programs = {
        "apt-get": f'echo apt-get >> {tmp_path}/done; [ "$1" = update ] || {sys.executable} -c '
        f"\"import os; os.symlink('/bin/true', '{tmp_path}/bin/python3')\"",
        "rm": f"echo rm >> {tmp_path}/done",
        "ln": f'echo ln "$@" >> {tmp_path}/done',
        **dict.fromkeys(there, "exit 1"),
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    subprocess.run(["/bin/sh", "-c", first], env={"PATH": str(tmp_path / "bin")}, check=True)
    done = tmp_path / "done"
    assert (done.read_text().splitlines() if done.exists() else []) == [
        each.format(bin=tmp_path / "bin") for each in expected
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if {*map(name_of, image.read(name))} & {*image.SOURCES}])
def test_pip_can_install_each_requirement_of_a_build_beside_the_constraints_that_it_gets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = dict(re.findall(r"^(\S+)==([^\s;]+)", image.CONSTRAINTS.read_text(), re.MULTILINE))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(image, "_pip", lambda *words, variables=None: asked.append(words))
    monkeypatch.setattr(image, "horovod_source", lambda package, folder: tmp_path)
    image.build(name, str(tmp_path))
    assert len(asked) == 2
    for words in asked:
        for word in words:
            if "--constraint" in words and name_of(word) in pinned:
                assert Requirement(word).specifier.contains(pinned[name_of(word)]), words


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
