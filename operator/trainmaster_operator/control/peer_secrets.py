"""What the agents of one round show each other: derived, so that it is written nowhere. Pure: the key comes in.

Whoever may read a job's status must not be able to read, or to replace, the states that its agents hold.
"""

from __future__ import annotations

import hmac

from trainmaster.contract.wire import Directive, altered
from trainmaster_operator.control.sessions import KEY_BYTES

KEY_VARIABLE = "TRAINMASTER_PEER_KEY"
"""The key in hex, of an operator of the local world: it stays while operators come and go."""

_PURPOSE = b"trainmaster peers\0"


def peer_secret(key: bytes, job_uid: str, round: int) -> str:
    """The same from every replica of the operator, and from the next one."""
    assert len(key) >= KEY_BYTES, "a short key can be guessed"
    return hmac.digest(key, _PURPOSE + f"{job_uid}\0{round}".encode(), "sha256").hex()


def with_secret(directive: Directive, secret: str) -> Directive:
    """The directive as its agent gets it. Under the same tag: the secret says nothing that the round doesn't."""
    assignment = directive.assignment
    return directive if assignment is None else altered(directive, assignment=altered(assignment, peer_secret=secret))
