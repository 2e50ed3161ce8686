"""The channel between a rank and its agent: a SOCK_SEQPACKET socket pair, with one JSON object in each packet.

A packet may carry file descriptors (SCM_RIGHTS). Packets are small: larger data lies in a memory file, whose descriptor
is sent.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

LIMIT = 128 * 1024

# rank -> agent
# A shard lies in the attached memory file. What trainmaster.checkpoint.files.upload takes:
# {step, round, rank, world_size, storage, directory, file, size, keep}
STAGED = "staged"
# Last words: {cause, message, traceback, step, cascade, may_go_on, at_ns, piped}. may_go_on: another program of the
# rank may follow the one that speaks, and then they don't count; at_ns: the time; piped: it is part of a pipeline
FAILED = "failed"
EXITS = "exits"  # {code, at_ns, piped}: the program ends by SystemExit, with a code that is not 0
# What this rank has imported since it last said so, for the zygote, in the order in which the imports began:
# {imports: [[name, name of the import that it was part of or ""], ...], variables: {name: value or null}, forkable,
# settled}. variables: that imports have set; forkable: the script changed nothing that torch may read at its import;
# settled: it will hardly import more
MODULES = "modules"
# {step, checkpoint, tier}: where it resumed, from storage, ram or peer; checkpoint null: from the start
RESUMED = "resumed"
EVENT = "event"  # {reason, message}: for people
IN_MEMORY = "in-memory"  # {step, round}: this rank's state lies in the pod's memory, whole
SAVED = "saved"  # {step, kept}: stopped on request; kept: a checkpoint of that step is staged
RESCUING = "rescuing"  # {}: the answer to RESCUE: this rank can still do something
RESCUED = "rescued"  # {step}: that step is in the agent's memory; null: nothing could be saved. It may be killed

# agent -> rank
RESCUE = "rescue"  # {}: save the last completed step; this round is over
UPLOADED = "uploaded"  # {step, error}: an upload of this rank ended; error null: it is durable


class Channel:
    """One end of the channel between a rank and its agent."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the two ends of a new channel."""
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(a), cls(b)

    @classmethod
    def open(cls, fd: int) -> Channel:
        """Return the end of a channel whose socket is the inherited file descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, kind: str, fields: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one message of a kind above, with file descriptors.

        Raises ValueError if it is longer than LIMIT bytes (128 KiB), and OSError if the other end is closed.
        """
        packet = json.dumps({"kind": kind, **fields}).encode()
        if len(packet) > LIMIT:
            raise ValueError(f"channel message {kind}: {len(packet)} bytes, at most {LIMIT} fit")
        socket.send_fds(self.socket, [packet], fds or [])

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its file descriptors (close-on-exec), or None if the other end is closed.

        Raises ValueError for a packet that is not JSON, which is lost then, and OSError.
        """
        packet, fds, _, _ = socket.recv_fds(self.socket, LIMIT, 8)
        if not packet:
            return None
        for fd in fds:
            os.set_inheritable(fd, False)
        try:
            message: dict[str, Any] = json.loads(packet)
        except ValueError:
            for fd in fds:
                os.close(fd)
            raise
        return message, fds

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
