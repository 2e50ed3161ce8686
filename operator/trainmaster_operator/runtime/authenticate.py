"""How agents prove who they are: one strategy for each world."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainmaster.contract.wire import Identity
from trainmaster_operator.control.admission import BEARER, Admission, Claim, Credential
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.runtime.clock import Clock
from trainmaster_operator.runtime.informer import Informer, JobKey
from trainmaster_operator.runtime.records import PodEntry

POD_WAIT_S = 1.0  # for a pod that isn't in the cache yet
POD_LOOK_S = 0.02


@dataclass(frozen=True)
class Known:
    """What the operator knows at this moment."""

    pods: Informer[PodEntry]
    refuse_gone: Callable[[Identity], None]
    """Raises Refused(410) when the job, or this incarnation, is known to be over."""


class Authenticator(Protocol):
    async def authenticate(self, credential: Credential, claim: Claim, known: Known) -> Admission:
        """See `Authenticate` of the control channel."""
        ...


class TokenHashes:
    """The kubelet that starts a pod writes the hash of its token into the pod's status: the local world, where all jobs
    are one person's, and the simulator."""

    def __init__(self, pod_name: Callable[[str, str, int, int], str], clock: Clock) -> None:
        self._pod_name = pod_name
        self._clock = clock

    async def authenticate(self, credential: Credential, claim: Claim, known: Known) -> Admission:
        if credential.scheme != BEARER:
            raise Refused(401, "a bearer token is expected")
        claimed = await claim()
        name = self._pod_name(claimed.job, claimed.role, claimed.slot, claimed.incarnation)
        digest = hashlib.sha256(credential.secret.encode(errors="surrogateescape")).hexdigest()
        give_up_at = self._clock.monotonic() + POD_WAIT_S
        while True:
            entry = known.pods.get(JobKey(claimed.namespace, name))
            if entry is not None and entry.token_sha256 and entry.record.uid == claimed.pod_uid:
                break
            known.refuse_gone(claimed)  # nothing is left that its token could be compared with
            if self._clock.monotonic() >= give_up_at:
                raise Refused(503, f"pod {name} with uid {claimed.pod_uid} is not known yet")
            await asyncio.sleep(POD_LOOK_S)
        if hmac.compare_digest(entry.token_sha256, digest):
            return Admission(claimed)
        if any(other.token_sha256 == digest for other in known.pods.owned(JobKey(claimed.namespace, claimed.job))):
            raise Refused(403, f"this token belongs to another pod than {name}")
        raise Refused(401, "this token is nobody's")
