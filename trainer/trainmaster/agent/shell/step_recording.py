"""`trainmaster.agent profile STEPS`: lays a request down for rank 0 of this pod. Who may run a command here may ask."""

from __future__ import annotations

import os
import sys

from trainmaster.contract.wire import environment, fault_protocol, profile_request


def request(words: list[str]) -> int:
    """Says what becomes of it."""
    try:
        steps = int(words[0])
        profile_request.ask(fault_protocol.folder(os.environ.get(environment.POD_UID, "")), steps)
    except (OSError, ValueError, IndexError) as error:
        print(f"no agent of this pod can be asked: {error}", file=sys.stderr)
        return 1
    print(f"the next {steps} steps are recorded; rank 0's log says when, and where the page lies")
    return 0
