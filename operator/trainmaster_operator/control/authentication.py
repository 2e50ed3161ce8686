"""Who may speak: what a request brings along, and what it is found to be."""

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
    """Who sent a request, as far as it is proven: what its message claims may differ."""

    identity: Identity
    session: str = field(default="", repr=False)  # a new one, for the answer's header


Claim = Callable[[], Awaitable[Identity]]
"""Reads the message, and returns who its sender says it is. Whoever can tell without, asks for it never: until a
request is admitted not one byte of its body is read."""

Authenticate = Callable[[Credential, Claim], Awaitable[Admission]]
"""Raises Refused: 401 for a credential that is nobody's, 403 for another's than the claim says, 503 while it can't be
told."""
