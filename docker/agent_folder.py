"""Lay out the agent's folder: `agent_folder.py TARGET`, run in the repository's root.

It is what an init container brings into a user's own image, and needs nothing there but a Python 3.10 or newer:
`python3 TARGET` is the agent.
"""

import shutil
import sys
from pathlib import Path

PARTS = (
    *("__init__.py", "errors.py", "agent", "host", "rank"),
    *("contract/__init__.py", "contract/launch", "contract/wire"),
    *("checkpoint/__init__.py", "checkpoint/files/__init__.py"),
    *("checkpoint/files/memory_tier.py", "checkpoint/files/received_copies.py"),
    *("checkpoint/files/peer_client.py", "checkpoint/files/peer_connection.py"),
)

target = Path(sys.argv[1])
for part in PARTS:
    source, copy = Path("trainer", "trainmaster", part), target / "trainmaster" / part
    copy.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, copy)
shutil.copy2("docker/agent.py", target / "__main__.py")
