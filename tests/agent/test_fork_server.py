"""What a zygote does with the connections of agents that have gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

TRAINER = Path(__file__).parents[2] / "trainer"
INTRODUCES = """
from trainmaster.agent.zygote import packets
from trainmaster.agent.zygote.fork_server import Server
server = Server()
agent, ours = packets.pair()
connection = server.connect(ours)
agent.close()
zygote, other = packets.pair()
server.send(connection, {"event": "zygote"}, [other.detach()])
zygote.setblocking(False)
print(zygote.recv(1))
"""


def test_a_descriptor_for_an_agent_that_has_gone_is_closed() -> None:
    """A learned zygote ends when nobody is connected to it: one that is kept would hold it for ever."""
    argv = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TRAINER)!r})\n{INTRODUCES}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "b''\n", done.stderr
