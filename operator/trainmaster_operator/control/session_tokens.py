"""Session tokens: what an agent presents instead of the token of its ServiceAccount once it is authenticated: its
identity, signed. The functions are pure: key and time are arguments.

All replicas have the same key, so a session stays valid when the leader changes. It proves who its bearer was when it
was created; the pod cache shows, each time, whether that pod still exists.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import astuple, dataclass

from trainmaster.contract.wire import Identity

KEY_BYTES = 32
LIFETIME_S = 3600.0
_SPREAD_S = 600  # Pods that started together do not all return with their tokens in the same second.
_VERSION = 1
_MOST_CHARACTERS = 4096
_PURPOSE = b"trainmaster session\0"


@dataclass(frozen=True)
class Session:
    """The identity of an agent, with an expiry."""

    identity: Identity
    pod: str  # The name of the pod.
    expires_at: float  # Seconds since 1970.


def new_session(identity: Identity, pod: str, now: float) -> Session:
    """Return a session that begins `now`, in seconds since 1970."""
    spread = int.from_bytes(hashlib.sha256(identity.pod_uid.encode()).digest()[:4], "big") % _SPREAD_S
    return Session(identity, pod, now + LIFETIME_S - spread)


def seal(session: Session, key: bytes) -> str:
    """Return the session as signed text."""
    content = [_VERSION, *astuple(session.identity), session.pod, session.expires_at]
    payload = _text(json.dumps(content, separators=(",", ":")).encode())
    return f"{payload}.{_text(_signature(payload, key))}"


def unseal(text: str, key: bytes, now: float) -> Session | None:
    """Return the session in a text; None if the signature is not ours or the session has expired."""
    payload, _, signature = text.partition(".")
    if len(text) > _MOST_CHARACTERS or not text.isascii():
        return None
    if not hmac.compare_digest(_text(_signature(payload, key)), signature):
        return None
    # The signature is valid, so one of our replicas has written the rest, perhaps in another release.
    version, *content = json.loads(base64.urlsafe_b64decode(payload + "=="))
    if version != _VERSION:
        return None
    *identity, pod, expires_at = content
    return Session(Identity(*identity), pod, expires_at) if now < expires_at else None


def _signature(payload: str, key: bytes) -> bytes:
    assert len(key) >= KEY_BYTES, "a short session key can be guessed"
    return hmac.digest(key, _PURPOSE + payload.encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
