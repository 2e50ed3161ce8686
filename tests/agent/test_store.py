"""A round's store knows no password, so it answers at the address of its pod and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from trainmaster.agent import frameworks
from trainmaster.agent.zygote import store_process
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.channel import Channel

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


HOSTS = """
import resource, sys
from trainmaster.agent.zygote import store_process
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
store_process.host(sys.argv[1])
"""


@pytest.mark.processes
def test_a_store_serves_more_ranks_than_a_process_may_have_files_at_its_start() -> None:
    ours, theirs = Channel.pair()
    env = {**os.environ, environment.FRAMEWORK: "JAX", environment.CHANNEL_FD: str(theirs.fileno())}
    host = subprocess.Popen([sys.executable, "-c", HOSTS, ADDRESS], env=env, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        told = ours.receive()
        assert told is not None
        with contextlib.ExitStack() as links:
            ranks = []
            for rank in range(60):
                link = links.enter_context(socket.create_connection((ADDRESS, told[0]["port"]), timeout=60))
                link.sendall(json.dumps({"rank": rank, "world_size": 60, "address": f"a:{rank}"}).encode() + b"\n")
                ranks.append(link)
            answers = [links.enter_context(link.makefile("rb")).readline() for link in ranks]
        assert [len(json.loads(answer)) for answer in answers] == [60] * 60
    finally:
        host.kill()
        host.wait()
        ours.close()


def test_the_ranks_of_torch_meet_at_a_store_of_torch() -> None:
    assert store_process.server_of(frameworks.find("PyTorch")) is None
