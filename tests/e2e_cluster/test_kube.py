"""How end-to-end tests ask and watch an API server, which may answer with a refusal or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from e2e.kube import Kube

POD = {"metadata": {"name": "a"}, "status": {"phase": "Running"}}
INTERNAL = {"kind": "Status", "code": 500, "message": "etcdserver: request timed out"}


class Server(ThreadingHTTPServer):
    """An API server of one pod. `watches`: the answer to each watch, a code and an object."""

    daemon_threads = True
    watches: list[tuple[int, object]]
    tokens: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers["Authorization"])
        listing = {"metadata": {"resourceVersion": "1"}, "items": []}
        code, answer = self.server.watches.pop(0) if "watch=1" in self.path else (200, listing)
        body = json.dumps(answer).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(*watches: tuple[int, object]) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.watches, server.tokens = [*watches], []
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def connected(folder: Path, port: int, user: object = None) -> Kube:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "a", "user": user or {}}],
    }
    file = folder / "config"
    file.write_text(json.dumps(content))  # which is YAML
    return Kube(file, Path("true"))


def test_a_watch_that_is_refused_is_begun_again(tmp_path: Path) -> None:
    with served((500, INTERNAL), (200, {"type": "ADDED", "object": POD})) as server:
        found = connected(tmp_path, server.server_port).wait("Pod", "a", "n", lambda pod: pod, "it is there", 30)
    assert found == POD


def test_a_wait_that_nobody_answers_says_what_it_waited_for_and_why_nothing_came(tmp_path: Path) -> None:
    with served() as server:
        port = server.server_port
    with pytest.raises(AssertionError, match="Pod n/a: it runs: not within ") as told:
        connected(tmp_path, port).wait("Pod", "a", "n", lambda pod: pod, "it runs", 0.1)
    assert "Connection refused" in str(told.value)
    assert "meanwhile the processors worked for " in str(told.value)


def test_a_wait_whose_watch_is_forbidden_says_so(tmp_path: Path) -> None:
    forbidden = {"kind": "Status", "code": 403, "message": "pods is forbidden: User cannot watch resource"}
    with served(*[(403, forbidden)] * 100) as server:
        kube = connected(tmp_path, server.server_port)
        with pytest.raises(AssertionError, match="not within ") as told:
            kube.wait("Pod", "a", "", lambda pod: pod, "it runs", 0.1)
    assert "User cannot watch resource" in str(told.value)


def test_a_token_that_has_expired_is_asked_for_again(tmp_path: Path) -> None:
    """As those of managed clusters do within a run of these tests."""
    version = "client.authentication.k8s.io/v1"
    program = tmp_path / "login"
    status = {"token": "'$(wc -l < times)'", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credential = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    program.write_text(f"#!/bin/sh\ncd {tmp_path}\necho >> times\necho '{credential}'\n")
    program.chmod(0o755)
    login = {"exec": {"apiVersion": version, "command": str(program), "interactiveMode": "Never"}}
    with served((200, {"type": "ADDED", "object": POD})) as server:
        connected(tmp_path, server.server_port, login).wait("Pod", "a", "n", lambda pod: pod, "it is there", 30)
    listed, watched = server.tokens
    assert (listed or "").startswith("Bearer ")
    assert listed != watched
