"""A round's store knows no password, so it answers at the address of its pod and nowhere else."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from trainmaster.agent import frameworks
from trainmaster.agent.zygote import store_process

ADDRESS, OTHER = "127.0.0.2", "127.0.0.1"


def refuses(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_socket_for_a_store_listens_at_one_address_alone() -> None:
    with store_process.listening(ADDRESS) as listener:
        port = listener.getsockname()[1]
        assert (refuses(ADDRESS, port), refuses(OTHER, port)) == (False, True)


def test_a_store_of_torch_listens_at_the_address_of_its_pod_alone() -> None:
    distributed = pytest.importorskip("torch.distributed")
    listener = store_process.listening(ADDRESS)
    port = listener.getsockname()[1]
    served = store_process.opened(ADDRESS, port, listener)
    distributed.TCPStore(ADDRESS, port, is_master=False).set("key", "value")
    assert served.get("key") == b"value"
    assert refuses(OTHER, port)


SERVES = """
import socket, sys
from trainmaster.agent import frameworks
from trainmaster.agent.zygote import store_process
store_process.server_of(frameworks.find(sys.argv[1]))(socket.socket(fileno=int(sys.argv[2])))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("framework", "said", "answer"),
    [
        ("JAX", b'{"rank": 0, "world_size": 1, "address": "a:1"}\n', b'["a:1"]\n'),
        ("Horovod", b"GET /global/0 HTTP/1.0\r\n\r\n", b"HTTP/1.0 404 Not Found\r\n"),
    ],
)
def test_the_store_speaks_what_the_ranks_of_a_framework_understand(framework: str, said: bytes, answer: bytes) -> None:
    with store_process.listening(ADDRESS) as listener:
        command = [sys.executable, "-c", SERVES, framework, str(listener.fileno())]
        server = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            with socket.create_connection(listener.getsockname(), timeout=60) as link:
                link.sendall(said)
                with link.makefile("rb") as lines:
                    assert lines.readline() == answer
        finally:
            server.kill()
            server.wait()


def test_the_ranks_of_torch_meet_at_a_store_of_torch() -> None:
    assert store_process.server_of(frameworks.find("PyTorch")) is None
