"""The secret by which the agents of one round recognise each other. It is derived, so it is stored nowhere. The
functions are pure: the key is an argument.

A user who may read a job's status must not be able to read or replace the states that its agents hold.
"""

from __future__ import annotations

import hmac

from trainmaster.contract.wire import Directive, altered
from trainmaster_operator.control.session_tokens import KEY_BYTES

KEY_VARIABLE = "TRAINMASTER_PEER_KEY"
"""The environment variable with the key in hex, for the operators of a local run: it stays the same when the
operator restarts."""

_PURPOSE = b"trainmaster peers\0"


def peer_secret(key: bytes, job_uid: str, round: int) -> str:
    """Return the secret of a round. All replicas of the operator, and later ones, return the same."""
    assert len(key) >= KEY_BYTES, "a short key can be guessed"
    return hmac.digest(key, _PURPOSE + f"{job_uid}\0{round}".encode(), "sha256").hex()


def with_secret(directive: Directive, secret: str) -> Directive:
    """Return the directive with the secret for its agent. The tag stays the same, because the secret changes only
    with the round."""
    assignment = directive.assignment
    return directive if assignment is None else altered(directive, assignment=altered(assignment, peer_secret=secret))
