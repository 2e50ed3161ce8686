"""Who may send requests: the credential of a request, and the identity that it proves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trainmaster.contract.wire import Identity

BEARER = "bearer"
SESSION = "session"


@dataclass(frozen=True)
class Credential:
    """The Authorization header of a request: its scheme in lower case, and the rest."""

    scheme: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Admission:
    """Who sent a request, as far as it is proven. The message may claim something else."""

    identity: Identity
    session: str = field(default="", repr=False)  # A new session for a header of the answer.


Claim = Callable[[], Awaitable[Identity]]
"""Reads the message and returns the identity that its sender claims. A method that can prove the identity without it
never calls it: until a request is admitted, nothing of its body is read."""

Authenticate = Callable[[Credential, Claim], Awaitable[Admission]]
"""Returns who sent the request. Raises Refused: 401 for an unknown credential, 403 if it belongs to another pod than
the claim says, 503 while it cannot be checked."""
