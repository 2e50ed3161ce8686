"""A round's store knows no password, so it answers at the address of its pod and nowhere else."""

from __future__ import annotations

import socket

import pytest

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
