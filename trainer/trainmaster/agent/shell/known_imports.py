"""What an agent knows of the imports of its script, and how a new agent learns it from the others of its round.

A new pod of a job that runs has started no rank yet, so it knows neither whether the script may be forked nor what it
imports. The agents beside it do. Their answer lets its zygote import what the ranks need, and the first rank of the pod
is forked like those of later rounds.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from trainmaster.agent.zygote.import_plan import Imported, join
from trainmaster.checkpoint.files.peer_client import Peer
from trainmaster.checkpoint.files.peer_connection import Refused
from trainmaster.contract.wire import Assignment, StoreAddress

ANSWER_S = 2.0
"""Seconds within which another agent must have answered. It answers at once when it has begun the round, too."""

IMPORT_S = 90.0
"""Seconds for which a rank waits for the zygote to import. A zygote that works needs no longer than an executed rank
would; this is for one that is stuck."""

_AGAIN_S = 0.1
_UNPACKED_LIMIT = 16 << 20
_NOT_KNOWN = 404


@dataclass(frozen=True)
class KnownImports:
    """The imports of a script whose ranks have been forked, or could be, and the modules that a zygote must not
    import."""

    imports: list[Imported] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)  # that imports have set, or (None) deleted
    barred: list[str] = field(default_factory=list)

    def more(self, other: KnownImports) -> KnownImports:
        """Return this, and after it what only `other` has."""
        return KnownImports(
            join(self.imports, other.imports),
            {**other.variables, **self.variables},
            sorted({*self.barred, *other.barred}),
        )

    def pack(self) -> bytes:
        """Return this in the form in which agents send it."""
        return zlib.compress(json.dumps(asdict(self)).encode(), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> KnownImports:
        """Return what `packed` says. Raises ValueError."""
        try:
            unpacking = zlib.decompressobj()
            said = json.loads(unpacking.decompress(packed, _UNPACKED_LIMIT))
            return cls(
                [Imported(str(name), str(within)) for name, within in said["imports"]],
                {str(name): None if value is None else str(value) for name, value in said["variables"].items()},
                [str(name) for name in said["barred"]],
            )
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


def others(assignment: Assignment, slot: int) -> list[StoreAddress]:
    """Return the agents to ask: the next one of the round, and that of rank 0's pod. Both may be as new as this one."""
    if not assignment.peer_secret:
        return []
    asked = {n.slot: n.address for n in (assignment.ring, assignment.first) if n is not None and n.slot != slot}
    return list(asked.values())


def ask(peers: Sequence[StoreAddress], secret: str, answered: Callable[[KnownImports | None], None]) -> None:
    """Ask `peers` one after the other, in a thread of its own. `answered` is called there once, with None if none of
    them knows anything or all are silent for ANSWER_S."""
    deadline = time.monotonic() + ANSWER_S

    def run() -> None:
        known = _first_answer(peers, secret, deadline)
        with contextlib.suppress(RuntimeError):  # the agent's event loop has ended
            answered(known)

    threading.Thread(target=run, name="imports", daemon=True).start()


def _first_answer(peers: Sequence[StoreAddress], secret: str, deadline: float) -> KnownImports | None:
    left = list(peers)
    while left and time.monotonic() < deadline:
        for peer in list(left):
            try:
                with Peer(peer, secret) as link:
                    return KnownImports.unpack(link.imports())
            except Refused as refusal:
                if refusal.status == _NOT_KNOWN:
                    left.remove(peer)  # others are asked again: they have not begun this round yet
            except (OSError, ValueError):
                pass
        if left:
            time.sleep(_AGAIN_S)
    return None
