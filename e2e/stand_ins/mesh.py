"""A sum over all ranks: each rank listens at its own address, and rank 0 collects and returns what they send."""

import json
import socket
import time

LIMIT_S = 60.0


class Mesh:
    """Connects the ranks. addresses: (host, port) of each rank, in their order. `own`: a socket that listens at that
    of this rank already, if there is one."""

    def __init__(self, rank: int, addresses: list[tuple[str, int]], own: socket.socket | None = None) -> None:
        self.rank, self.size = rank, len(addresses)
        self._links: list[socket.socket] = []
        if rank == 0:
            listener = own or socket.create_server(addresses[0])
            while len(self._links) < self.size - 1:
                self._links.append(listener.accept()[0])
            listener.close()
        else:
            self._links.append(_connect(addresses[0]))
        self._files = [link.makefile("rwb") for link in self._links]

    def sum(self, value: float) -> float:
        """Return the sum of what all ranks give. Raises ConnectionError if one of them is gone."""
        if self.rank == 0:
            value += sum(self._hear(number) for number in range(self.size - 1))
            for number in range(self.size - 1):
                self._tell(number, value)
            return value
        self._tell(0, value)
        return self._hear(0)

    def _tell(self, number: int, value: float) -> None:
        self._files[number].write(json.dumps(value).encode() + b"\n")
        self._files[number].flush()

    def _hear(self, number: int) -> float:
        line = self._files[number].readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("gloo: Connection closed by peer")
        return float(json.loads(line))


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection(address, timeout=LIMIT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
