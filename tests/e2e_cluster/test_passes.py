"""Which end-to-end tests run two at a time, and which alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import access
from e2e.__main__ import main, passes, verdict
from e2e.installation import Installation
from e2e.kube import Kube

E2E = Path(access.__file__).parent
MOVES = re.compile(
    r"installation\.(scale|stopped|install|uninstall)\(|installation\.helm\((?!.*--dry-run)"
    r"|NAMESPACE, grace_s|Pod\", leader|kill_container\(leader"
    r"|machine\.(lose|partition|heal|restart_api_server)\(|\"drain\"|machine\.audit_log|assert_the_demo_recovers\("
)
"""Calls that other tests would feel."""


def source_of_tests() -> Iterator[tuple[str, bool, str]]:
    """Each end-to-end test or fixture of a test file: its name, whether it is marked `exclusive`, and its source."""
    for path in sorted(E2E.glob("test_*.py")):
        text = path.read_text()
        whole = re.search(r"^pytestmark = .*pytest\.mark\.exclusive\b", text, re.MULTILINE) is not None
        for function in ast.parse(text).body:
            if isinstance(function, ast.FunctionDef):
                marks = [ast.unparse(decorator) for decorator in function.decorator_list]
                source = ast.get_source_segment(text, function) or ""
                yield f"{path.name}::{function.name}", whole or "pytest.mark.exclusive" in marks, source


def test_whatever_moves_the_operator_the_api_server_or_a_node_runs_alone() -> None:
    movers = {name: exclusive for name, exclusive, source in source_of_tests() if MOVES.search(source)}
    assert [name for name, exclusive in movers.items() if not exclusive] == []
    assert len(movers) >= 10, "the calls have other names by now"


def unguarded_installs(tree: ast.AST, guarded: bool = False) -> Iterator[ast.Call]:
    """Calls that install the chart with other values than all tests have, and that no `finally` follows."""
    others = isinstance(tree, ast.Call) and (tree.args or tree.keywords)
    if others and not guarded and re.search(r"\binstallation\.install$", ast.unparse(tree.func)):
        yield tree
    for name, below in ast.iter_fields(tree):
        inside = guarded or (isinstance(tree, ast.Try) and bool(tree.finalbody) and name == "body")
        for child in below if isinstance(below, list) else [below]:
            if isinstance(child, ast.AST):
                yield from unguarded_installs(child, inside)


def test_a_chart_that_cant_be_installed_with_other_values_does_not_stay_so_for_the_tests_that_follow() -> None:
    found = [
        f"{path.name}:{call.lineno}"
        for path in sorted(E2E.glob("test_*.py"))
        for call in unguarded_installs(ast.parse(path.read_text()))
    ]
    assert found == []


def test_every_test_is_in_one_pass_and_only_the_first_has_workers() -> None:
    beside, alone = passes([], "", 2)
    assert beside[beside.index("-m") + 1] == "not exclusive and not trial"
    assert alone[alone.index("-m") + 1] == "exclusive and not trial"
    assert beside[beside.index("-n") + 1] == "2"
    assert "-n" not in alone
    assert beside[0] == alone[0] == "e2e"


def test_what_is_on_trial_is_run_on_request() -> None:
    beside, alone = passes([], "", 2, trial=True)
    assert (beside[beside.index("-m") + 1], alone[alone.index("-m") + 1]) == ("not exclusive", "exclusive")


def test_one_worker_needs_no_other_process() -> None:
    assert "-n" not in passes([], "", 1)[0]


def test_chosen_tests_and_an_expression_reach_both_passes() -> None:
    for arguments in passes(["e2e/test_start.py", "e2e/test_nodes.py"], "quota", 2):
        assert arguments[:2] == ["e2e/test_start.py", "e2e/test_nodes.py"]
        assert arguments[arguments.index("-k") + 1] == "quota"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 1], 1), ([1, 0], 1), ([5, 0], 0), ([0, 5], 0), ([5, 5], 5), ([5, 1], 1), ([2], 2)],
    ids=str,
)
def test_a_pass_without_tests_is_no_failure_unless_both_have_none(codes: list[int], expected: int) -> None:
    assert verdict(codes) == expected


def test_without_a_cluster_one_sentence_tells_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("E2E_CLUSTER", "current")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([]) == 2
    assert capsys.readouterr().err == f"e2e: no cluster: {tmp_path / 'none'} is missing (`make cluster` starts one)\n"


def test_an_unknown_cluster_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("E2E_CLUSTER", "minikube")
    assert main([]) == 2
    assert capsys.readouterr().err == "e2e: E2E_CLUSTER is minikube: it must be own, kind or current\n"


@pytest.mark.parametrize("text", ["", "nonsense", "{clusters: [", "{apiVersion: v1, kind: Config, current-context: a}"])
def test_a_kubeconfig_that_says_nothing_is_refused_in_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubectl").touch(mode=0o755)
    (tmp_path / "config").write_text(text)
    monkeypatch.setattr(access.places, "BIN", tmp_path)
    monkeypatch.setenv("E2E_CLUSTER", "current")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main([]) == 2
    assert capsys.readouterr().err.startswith(f"e2e: {tmp_path / 'config'} is no kubeconfig that can be used: ")


def test_no_worker_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--workers", "0"])
    assert refused.value.code == 2
    assert "at least 1 test must run at a time" in capsys.readouterr().err


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kube:
    """A cluster that nobody talks to."""
    for program in ("helm", "kubectl"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(access.places, "BIN", tmp_path)
    kubeconfig = tmp_path / "admin.conf"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, user: {}}]}"
    )
    return Kube(kubeconfig, tmp_path / "kubectl")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the chart."""
    seen: list[str] = []

    def note(name: str) -> Any:
        return lambda *_, **__: seen.append(name)

    for name in ("install", "uninstall"):
        monkeypatch.setattr(Installation, name, note(name))
    monkeypatch.delenv(access.INSTALLED, raising=False)
    return seen


def test_the_chart_is_uninstalled_at_the_end_of_a_run_that_failed_too(kube: Kube, calls: list[str]) -> None:
    def run() -> None:
        with access.installation(kube):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert calls == ["install", "uninstall"]


def test_processes_of_one_run_find_the_chart_installed(
    kube: Kube, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with access.installation(kube):
        monkeypatch.setenv(access.INSTALLED, "1")
        with access.installation(kube), access.installation(kube):
            pass
    assert calls == ["install", "uninstall"]


def test_a_second_run_is_refused_while_the_first_one_has_the_cluster(kube: Kube, calls: list[str]) -> None:
    with (
        access.installation(kube),
        pytest.raises(access.AccessError, match="another run"),
        access.installation(kube),
    ):
        pass
    assert calls == ["install", "uninstall"]


def test_a_kubeconfig_in_a_folder_of_somebody_else_is_told_in_a_sentence(kube: Kube, calls: list[str]) -> None:
    kube.kubeconfig = Path("/proc/k3s.yaml")  # where not even root can make a file
    told = r"^no lock can be taken at /proc/\.k3s\.yaml\.e2e \(No such file or directory\): copy "
    with pytest.raises(access.AccessError, match=told), access.installation(kube):
        pass
    assert calls == []


def test_a_chart_that_can_not_be_installed_is_told_in_a_sentence_and_nothing_of_it_is_left(
    kube: Kube,
    calls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Installation) -> None:
        raise AssertionError("helm upgrade: Error: Kubernetes cluster unreachable")

    monkeypatch.setattr(Installation, "install", fail)
    monkeypatch.setenv("E2E_CLUSTER", "current")
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    assert main([]) == 2
    told = "e2e: the chart can't be installed: helm upgrade: Error: Kubernetes cluster unreachable\n"
    assert capsys.readouterr().err == told
    assert calls == ["uninstall"]
