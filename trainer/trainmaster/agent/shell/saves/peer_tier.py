"""This pod's part in the peer tier: it keeps copies for another pod, and another pod keeps copies of its states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.saves.peer_server import PeerServer
from trainmaster.agent.shell.saves.replica_sender import Replicas, State
from trainmaster.checkpoint.files.memory_tier import RamFolder
from trainmaster.contract.wire import Assignment, environment
from trainmaster.contract.wire.messages import StoreAddress

NOBODY, NONE_YET = 0, -1
"""Values of `Control.copied_step` if no copies are made, and before the first copy of a round."""


class Peers:
    """The peer tier. `copied(round, rank, step)` is called in the event loop with what a peer has: a step, or
    NOBODY."""

    def __init__(
        self, settings: Settings, copied: Callable[[int, int, int], None], event: Callable[[str, str], None]
    ) -> None:
        env = settings.environ
        folder = None
        if env.get(environment.RAM_DIR) and env.get(environment.RAM_BUDGET):
            folder = RamFolder(env[environment.RAM_DIR], int(env[environment.RAM_BUDGET]))
        self._copied, self._event = copied, event
        self._loop = asyncio.get_running_loop()
        self._told: set[tuple[int, str]] = set()
        self._server: PeerServer | None = None
        self._replicas = Replicas(folder, self._ended) if folder is not None else None
        try:
            self._server = PeerServer(settings.pod_ip, folder)
        except OSError as error:
            event("PeersOff", f"no copies are kept for peers: {settings.pod_ip} can't be listened on: {error}")

    @property
    def address(self) -> StoreAddress | None:
        """Return the address at which peers reach this agent, or None."""
        return self._server.address if self._server is not None else None

    def begin(self, assignment: Assignment) -> None:
        """Note that a round begins. From now on no agent of an older round is answered."""
        if self._server is not None:
            own = range(assignment.first_rank, assignment.first_rank + assignment.ranks)
            self._server.begin(assignment.round, assignment.peer_secret, own)
        if self._replicas is not None:
            self._replicas.begin(assignment.round, assignment.peers, assignment.peer_secret)

    def update_peers(self, assignment: Assignment) -> None:
        """Take over the addresses of peers while the round goes on.

        A new leader may know fewer of them than its predecessor, and the same leader may have learned of more.
        """
        if self._replicas is not None and assignment.peers:
            self._replicas.move(assignment.round, assignment.peers)

    def tell_imports(self, imports: bytes) -> None:
        """Tell peers that ask what the ranks of this pod import; b"" if that is not known."""
        if self._server is not None:
            self._server.imports = imports

    def first_copied_step(self) -> int:
        """Return the `copied_step` with which a rank of a new round begins."""
        return NONE_YET if self._replicas is not None and self._replicas.on else NOBODY

    def environment(self, assignment: Assignment) -> dict[str, str]:
        """Return the variables of a rank."""
        if self.address is None or not assignment.peer_secret:
            return {}
        return {
            environment.PEER_ADDRESS: f"{self.address.host}:{self.address.port}",
            environment.PEER_SECRET: assignment.peer_secret,
        }

    def saved(self, rank: int, message: dict[str, Any]) -> None:
        """Offer a rank's state, which lies in this pod's memory, to the peers."""
        if self._replicas is not None:
            self._replicas.offer((int(message["step"]), int(message["round"]), rank))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._replicas is not None:
            self._replicas.close()

    def _ended(self, state: State, problem: str) -> None:
        self._loop.call_soon_threadsafe(self._tell, state, problem)

    def _tell(self, state: State, problem: str) -> None:
        step, round, rank = state
        self._copied(round, rank, NOBODY if problem else step)
        if problem and (round, problem) not in self._told:
            self._told.add((round, problem))
            self._event("PeerCopyFailed", f"what rank {rank} saved to memory at step {step} has no copy: {problem}")
