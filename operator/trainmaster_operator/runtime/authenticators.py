"""How agents prove their identity: one strategy for local runs, one for clusters."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trainmaster.contract.wire import Identity
from trainmaster_operator.cluster.port import POD, ApiError, Cluster, Forbidden, NotFound, TokenReview
from trainmaster_operator.control.authentication import BEARER, SESSION, Admission, Claim, Credential
from trainmaster_operator.control.fleet import Refused
from trainmaster_operator.control.rate_limits import Allowance, Bucket, Buckets
from trainmaster_operator.control.session_tokens import new_session, seal, unseal
from trainmaster_operator.manifests.agent_identity import AUDIENCE
from trainmaster_operator.runtime.cache.cache_records import PodEntry, owning_job
from trainmaster_operator.runtime.cache.informer import Informer, JobKey
from trainmaster_operator.runtime.clock import Clock

log = logging.getLogger(__name__)

POD_WAIT_S = 1.0  # Seconds to wait for a pod that is not in the cache yet.
POD_LOOK_S = 0.02
REVIEWS = 64  # Maximum number of simultaneous token reviews, however many agents connect.
REVIEW_WAIT_S = 5.0  # Seconds to wait until one of these can start.
COME_AGAIN_S = 1.0
POD_REVIEWS = Allowance(rate=1, burst=10)
OTHER_REVIEWS = Allowance(rate=200, burst=2000)


@dataclass(frozen=True)
class Known:
    """What the operator knows at this moment."""

    pods: Informer[PodEntry]
    refuse_gone: Callable[[Identity], None]
    """Raise Refused(410) if the job, or this incarnation, is known to be over."""


class Authenticator(Protocol):
    """Checks the credentials of agents."""

    async def authenticate(self, credential: Credential, claim: Claim, known: Known) -> Admission:
        """Return who the sender is. See `Authenticate` of the control channel."""
        ...


class TokenHashes:
    """Compares tokens with hashes. The kubelet that starts a pod writes the hash of its token into the pod's status.
    It is used in local runs, where all jobs belong to one person, and in the simulator."""

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
            known.refuse_gone(claimed)  # The pod is gone, so there is no hash to compare its token with.
            if self._clock.monotonic() >= give_up_at:
                raise Refused(503, f"pod {name} with uid {claimed.pod_uid} is not known yet")
            await asyncio.sleep(POD_LOOK_S)
        if hmac.compare_digest(entry.token_sha256, digest):
            return Admission(claimed)
        if any(other.token_sha256 == digest for other in known.pods.owned(JobKey(claimed.namespace, claimed.job))):
            raise Refused(403, f"this token belongs to another pod than {name}")
        raise Refused(401, "no pod of this job has this token")


class PodTokens:
    """Authentication on Kubernetes: the API server reviews a ServiceAccount token that is bound to its pod once; after
    that a session is used.

    The identity of a pod (its job, slot and incarnation) comes from the pod cache, also for sessions: a pod that was
    deleted or replaced has lost its session. `session_key()` is the same in all replicas.
    """

    def __init__(self, cluster: Cluster, clock: Clock, session_key: Callable[[], bytes]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._session_key = session_key
        self._reviewing = asyncio.Semaphore(REVIEWS)
        self._pod_reviews = Buckets(POD_REVIEWS)
        self._other_reviews = Bucket(OTHER_REVIEWS, clock.monotonic())

    async def authenticate(self, credential: Credential, claim: Claim, known: Known) -> Admission:
        if credential.scheme == SESSION:
            return self._by_session(credential.secret, known)
        if credential.scheme == BEARER:
            return await self._by_token(credential.secret, known)
        raise Refused(401, "a bearer token or a session is expected")

    def _by_session(self, text: str, known: Known) -> Admission:
        session = unseal(text, self._session_key(), self._clock.now())
        if session is None:
            raise Refused(401, "this session is not valid or has expired")
        identity = _identity(known.pods, session.identity.namespace, session.pod, session.identity.pod_uid)
        if identity == session.identity:
            return Admission(identity)
        # The signature proves who the agent was, so it may be told that it is stale. Otherwise its token shows who it
        # is.
        known.refuse_gone(session.identity)
        raise Refused(401, "the pod of this session is not known here")

    async def _by_token(self, token: str, known: Known) -> Admission:
        if not token.isascii():
            raise Refused(401, "the API server does not recognise this token")
        self._limit(token, known)
        review = await self._review(token)
        if review is None or not review.pod_uid:
            raise Refused(
                401,
                "the API server does not recognise this token"
                if review is None
                else "this token is not bound to a pod",
            )
        identity = await self._wait_for(review, known)
        session = new_session(identity, review.pod, self._clock.now())
        return Admission(identity, seal(session, self._session_key()))

    def _limit(self, token: str, known: Known) -> None:
        """Raise Refused(429) if too many tokens must be reviewed. Each known pod has its own allowance; all others
        share one. So a flood of invented tokens blocks only pods that are too new to be known, and only for a
        moment."""
        now = self._clock.monotonic()
        namespace, name, uid = _bound_to(token)
        entry = known.pods.get(JobKey(namespace, name))
        if entry is not None and entry.record.uid == uid:
            wait_s = self._pod_reviews.take(uid, now)
        else:
            wait_s = self._other_reviews.take(now)
        if wait_s:
            raise Refused(429, "too many tokens are waiting for a review", max(wait_s, COME_AGAIN_S))

    async def _review(self, token: str) -> TokenReview | None:
        try:
            async with asyncio.timeout(REVIEW_WAIT_S):
                await self._reviewing.acquire()
        except TimeoutError:
            raise Refused(503, "too many tokens are waiting for a review", COME_AGAIN_S) from None
        try:
            return await self._cluster.review_token(token, AUDIENCE)
        except ApiError as error:
            log.warning("a token could not be reviewed: %s", error)
            raise Refused(503, "the API server could not review this token; try again") from None
        finally:
            self._reviewing.release()

    async def _wait_for(self, review: TokenReview, known: Known) -> Identity:
        """Return the identity of the pod. The pod exists, because its token is valid, but this cache may be a little
        late. Raise Refused(503) if it does not appear."""
        give_up_at = self._clock.monotonic() + POD_WAIT_S
        while True:
            identity = _identity(known.pods, review.namespace, review.pod, review.pod_uid)
            if identity is not None:
                return identity
            if self._clock.monotonic() >= give_up_at:
                await self._refuse_foreign(review)
                raise Refused(503, f"pod {review.pod} with uid {review.pod_uid} is not known yet")
            await asyncio.sleep(POD_LOOK_S)

    async def _refuse_foreign(self, review: TokenReview) -> None:
        """Raise Refused for a pod that belongs to no job, so that it does not try again: any pod of the cluster can
        get a token for this operator."""
        try:
            obj = await self._cluster.get(POD, review.namespace, review.pod)
        except NotFound:
            raise Refused(401, "the pod of this token is gone") from None
        except Forbidden:
            raise Refused(403, "this operator serves other namespaces") from None
        except ApiError as error:
            raise Refused(
                503, f"the operator could not read this pod from the API server; try again: {error}"
            ) from None
        if obj["metadata"]["uid"] != review.pod_uid:
            raise Refused(401, "the pod of this token is gone")
        if owning_job(obj) is None:
            raise Refused(403, f"pod {review.pod} belongs to no job")


def _identity(pods: Informer[PodEntry], namespace: str, pod: str, uid: str) -> Identity | None:
    """Return the identity of a pod, or None if the cache has no such pod or it belongs to no job."""
    entry = pods.get(JobKey(namespace, pod))
    if entry is None or entry.record.uid != uid or not entry.job or entry.record.slot < 0:
        return None
    record = entry.record
    return Identity(
        job_uid=entry.job_uid,
        namespace=namespace,
        job=entry.job,
        role=record.role,
        slot=record.slot,
        incarnation=record.incarnation,
        pod_uid=uid,
    )


def _bound_to(token: str) -> tuple[str, str, str]:
    """Return the namespace, name and uid of the pod to which this token claims to be bound, without proof; three
    empty strings if it claims none."""
    try:
        payload = token.split(".")[1].encode()
        bound = json.loads(base64.urlsafe_b64decode(payload + b"=="))["kubernetes.io"]
        namespace, name, uid = bound["namespace"], bound["pod"]["name"], bound["pod"]["uid"]
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        return "", "", ""
    return (namespace, name, uid) if isinstance(namespace, str) and isinstance(name, str) else ("", "", "")
