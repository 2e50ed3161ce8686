"""What an agent shows instead of its token once it has been recognised: its place, signed. Pure: key and time come in.

All replicas hold the same key, so a session outlives a change of the leader. It says who its bearer was when it was
made: whether that pod still exists is for the pod cache to say, each time.
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
_SPREAD_S = 600  # pods that started together don't all come back with their tokens in the same second
_VERSION = 1
_MOST_CHARACTERS = 4096
_PURPOSE = b"trainmaster session\0"


@dataclass(frozen=True)
class Session:
    identity: Identity
    pod: str  # its name
    expires_at: float  # seconds since 1970


def new_session(identity: Identity, pod: str, now: float) -> Session:
    spread = int.from_bytes(hashlib.sha256(identity.pod_uid.encode()).digest()[:4], "big") % _SPREAD_S
    return Session(identity, pod, now + LIFETIME_S - spread)


def seal(session: Session, key: bytes) -> str:
    content = [_VERSION, *astuple(session.identity), session.pod, session.expires_at]
    payload = _text(json.dumps(content, separators=(",", ":")).encode())
    return f"{payload}.{_text(_signature(payload, key))}"


def unseal(text: str, key: bytes, now: float) -> Session | None:
    """None: it isn't ours, or it has expired."""
    payload, _, signature = text.partition(".")
    if len(text) > _MOST_CHARACTERS or not text.isascii():
        return None
    if not hmac.compare_digest(_text(_signature(payload, key)), signature):
        return None
    # From here on it is what some replica of ours has written, perhaps of another release.
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
