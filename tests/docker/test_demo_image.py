"""The demo in a container: what the image and compose.yaml bring for it, and how its metrics leave the container."""

from __future__ import annotations

import http.client
import http.server
import importlib.util
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tomllib
import yaml

from trainmaster_operator.cli.argument_parser import parser

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "trainer.Dockerfile").read_text()
METRICS = b"# HELP trainmaster_leader\ntrainmaster_leader 1.0\n"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_in_a_container", ROOT / "docker" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


demo = _module()


class Run(http.server.BaseHTTPRequestHandler):
    """A run's own port: it has metrics, and words that are for its agents alone."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(METRICS if self.path == "/metrics" else b"secret")

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def run() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Run) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_an_index_with_a_torch_for_cpus_is_asked_besides_the_one_that_has_everything_else() -> None:
    """One command of pip installs TORCH, with its options, and packages that this index does not have."""
    assert re.search(r"pip install .* isal .* \$\{TORCH\}", DOCKERFILE)
    folders = (ROOT / "docs", ROOT / "docker", ROOT / "charts")
    files = [ROOT / "README.md", *(path for folder in folders for path in folder.rglob("*") if path.is_file())]
    texts = {path.relative_to(ROOT): path.read_text(errors="replace") for path in files}
    assert [path for path, text in texts.items() if "--extra-index-url https://download.pytorch.org" in text] != []
    assert [path for path, text in texts.items() if "--index-url https://download.pytorch.org" in text] == []


def test_metrics_leave_the_container_and_nothing_else_does(run: int) -> None:
    server = demo.serve("127.0.0.1", 0, run)
    assert get(server.server_address[1], "/metrics") == (200, METRICS)
    assert get(server.server_address[1], "/v1/join")[0] == 404
    server.shutdown()
    server.server_close()


def test_before_and_after_the_run_there_are_no_metrics(run: int) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Run) as gone:
        port = gone.server_address[1]
    server = demo.serve("127.0.0.1", 0, port)
    assert get(server.server_address[1], "/metrics")[0] == 503
    server.shutdown()
    server.server_close()


def test_the_command_of_the_container_can_be_given() -> None:
    options = parser().parse_args(["demo", "--port", str(demo.INNER_PORT), "--out", "/runs/demo", "--plain"])
    assert (options.command, options.port) == ("demo", demo.INNER_PORT)


def test_the_image_has_the_command_and_all_that_a_run_without_a_cluster_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {re.split(r"[<>=]", name)[0] for name in extras["local"]} == {
        "aiohttp",
        "prometheus-client",
        "pyyaml",
        "rich",
    }
    assert '*o["local"]' in DOCKERFILE
    assert "COPY docker/demo.py /installed/usr/local/bin/demo" in DOCKERFILE
    assert (ROOT / "docker" / "demo.py").stat().st_mode & 0o111


def test_compose_asks_for_a_variable_that_bash_lets_a_person_set() -> None:
    """UID is read-only in bash: `UID=... docker compose` fails there, and the demo would run as user 1000."""
    compose = (ROOT / "docker" / "compose.yaml").read_text()
    (service,) = yaml.safe_load(compose)["services"].values()
    found = re.fullmatch(r"\$\{(\w+):-1000:1000\}", service["user"])
    assert found is not None
    name = found[1]
    assert f"mkdir -p runs && {name}=$(id -u):$(id -g) docker compose" in compose
    done = subprocess.run(["bash", "-c", f"{name}=7:8 printenv {name}"], capture_output=True, text=True, check=False)
    assert done.stdout == "7:8\n", done.stderr


def test_compose_publishes_the_metrics_to_this_machine_alone_and_brings_the_report_out() -> None:
    (service,) = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"].values()
    assert service["command"] == ["demo"]
    assert service["ports"] == [f"127.0.0.1:{demo.PORT}:{demo.PORT}"]
    (volume,) = service["volumes"]
    assert volume == "../runs:/runs"
    assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
