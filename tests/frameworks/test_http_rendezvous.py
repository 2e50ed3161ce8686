"""Horovod's ranks find each other over HTTP at the store of their round."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from trainmaster.agent.frameworks import http_rendezvous

TIMEOUT_S = 30


class Store:
    """A rendezvous that another thread serves."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self._server = http_rendezvous._Server(listener)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02])
        self._thread.start()

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        link = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        try:
            link.request(method, path, body, headers)
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


def test_a_value_is_found_in_its_scope_once_it_was_stored(store: Store) -> None:
    assert store.ask("GET", "/global/0") == (404, b"")
    assert store.ask("PUT", "/global/0", b"\x00addresses\xff") == (200, b"")
    assert store.ask("GET", "/global/0") == (200, b"\x00addresses\xff")
    assert store.ask("GET", "/local_node-0/0")[0] == 404


def test_a_scope_is_emptied_when_all_its_ranks_have_connected(store: Store) -> None:
    """Ranks that initialize Horovod again find no addresses of before."""
    for path in ("/global/0", "/global/1", "/global/hosts", "/cross_0/0"):
        store.ask("PUT", path, b"x")
    store.ask("DELETE", "/global/1")
    store.ask("DELETE", "/global/1")
    assert store.ask("GET", "/global/0") == (200, b"x"), "rank 0 has not connected yet"
    store.ask("DELETE", "/global/0")
    assert [store.ask("GET", path)[0] for path in ("/global/0", "/global/1", "/global/hosts")] == [404] * 3
    assert store.ask("GET", "/cross_0/0") == (200, b"x")
    store.ask("PUT", "/global/0", b"again")
    store.ask("PUT", "/global/1", b"again")
    store.ask("DELETE", "/global/0")
    assert store.ask("GET", "/global/1") == (200, b"again")


def test_a_rank_that_has_connected_in_a_scope_that_nobody_knows_does_no_harm(store: Store) -> None:
    assert store.ask("DELETE", "/unknown/0") == (200, b"")
    assert store.ask("GET", "/unknown/0")[0] == 404


@pytest.mark.parametrize("path", ["/", "/global", "/global/", "//0", "/a/b/c", "global/0"])
def test_a_path_without_scope_and_key_is_refused(store: Store, path: str) -> None:
    assert [store.ask(method, path, b"")[0] for method in ("GET", "PUT", "DELETE")] == [400] * 3


def test_a_value_of_unknown_length_or_too_large_is_refused(store: Store) -> None:
    assert store.ask("PUT", "/global/0", None, **{"Content-Length": "many"})[0] == 400
    assert store.ask("PUT", "/global/0", None, **{"Content-Length": str(1 << 30)})[0] == 400
    assert store.ask("GET", "/global/0")[0] == 404


def test_the_number_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_rendezvous, "_MOST_VALUES", 2)
    values = http_rendezvous.Values()
    assert [values.put("a", "0", b"x"), values.put("b", "0", b"x"), values.put("c", "0", b"x")] == [True, True, False]
