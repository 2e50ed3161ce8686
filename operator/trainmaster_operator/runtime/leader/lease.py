"""Leader election by a Lease, with a deadline that depends on no clock but our own.

The epoch is the Lease's number of transitions. It increases with each change of the holder, the first one included, and
is part of the status and of every directive, so that agents refuse a former leader. Between a renewal and the monotonic
deadline that it grants, this process may act; it calls `check` right before each act.

A busy event loop must not lose the lease: on a cluster an Elector runs in its own thread and loop, with its own Cluster
(election_thread.py). `leading`, `check`, `epoch`, `rival_address`, `leaderless_s`, `vouches` and `standby_answers` only
read plain attributes and may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cluster.port import (
    ADDED,
    KINDS,
    LEASE,
    MODIFIED,
    POD,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    NotFound,
    Object,
)
from trainmaster_operator.planning.facts.observation import OperatorAbsence, StandbyAnswers
from trainmaster_operator.runtime.clock import Clock, micro_time
from trainmaster_operator.runtime.leader.standbys import Standby, Standbys
from trainmaster_operator.runtime.tasks_that_end_together import running

log = logging.getLogger(__name__)

ADDRESS = f"{GROUP}/address"
"""Annotation of the Lease: the address of the leader's control channel, for agents that called another replica."""

HOLDER_POD = f"{GROUP}/pod-uid"
"""Annotation of the Lease: the uid of the pod whose name is the holder's identity. "" if the holder is no pod."""

LEASE_LABEL = f"{GROUP}/lease"
"""Label by which a watch selects this Lease only."""

MARGIN_S = 0.01  # Seconds after a rival's lease has expired.

STOPPED_AFTER = 0.85
"""Share of a lease's duration after which a leader that did not renew it leads no more. It stops acting after two
thirds of the duration, and until five sixths its last try to renew the lease may still succeed (see `lasting` and
`hold`)."""


class NotLeading(Exception):
    """This process may not act any more: its lease has expired, or another process holds it."""


@dataclass(frozen=True)
class LeaseSettings:
    """Settings of the leader election. Times are in seconds."""

    namespace: str = "default"
    name: str = "trainmaster-operator"
    duration_s: float = 15.0  # Others wait for this time after the last renewal that they have seen.
    # This process stops acting after this time, counted from the start of its last successful renewal.
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    takeover: bool = False  # The caller guarantees that no other operator runs, so the lease is taken from any holder.
    watch: bool = False  # Watch the lease while waiting, so that a released lease is noticed at once.
    address: str = ""  # host:port of this process's control channel.
    pod_uid: str = ""  # The uid of the pod in which this process runs, and whose name is its identity.
    standbys: bool = False  # Standbys renew Leases of their own, which the leader reads (see standbys.py).


def lasting(duration_s: float) -> LeaseSettings:
    """Return the settings for a lease of this duration: a leader stops acting after two thirds of it without a
    renewal, and tries to renew it five times until then."""
    return LeaseSettings(duration_s=duration_s, renew_deadline_s=duration_s * 2 / 3, retry_s=duration_s * 2 / 15)


class Leadership(Protocol):
    """The interface of an Elector for the rest of the operator, in whichever thread it runs."""

    @property
    def epoch(self) -> int: ...
    @property
    def leading(self) -> bool: ...
    @property
    def absence(self) -> OperatorAbsence | None: ...
    @property
    def standby_answers(self) -> StandbyAnswers: ...
    def check(self) -> None: ...
    async def acquire(self) -> int: ...
    async def hold(self) -> None: ...
    async def outgrow(self, epoch: int) -> None: ...
    async def release(self) -> None: ...


class _Rival(NamedTuple):
    """A renewal by another holder, and when, if no further renewal follows, that holder has stopped and this process
    may take the lease."""

    seen: tuple[str, str, str]
    stopped_at: float
    expires_at: float


class Elector:
    """Call `acquire`, then `hold` until it raises NotLeading, and `release` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        chance: random.Random,
        identity: str,
        settings: LeaseSettings | None = None,
    ) -> None:
        self.identity = identity
        self.epoch = 0
        self.absence: OperatorAbsence | None = None  # From the last sign of the previous leader until this process led.
        self.settings = settings or LeaseSettings()
        self._cluster = cluster
        self._clock = clock
        self._random = chance
        self._deadline = float("-inf")
        self._lease: Object | None = None
        self._rival: _Rival | None = None
        self._freed = asyncio.Event()
        self.rival_address = ""  # The address of the present leader; "" if there is none or it is unknown.
        self._leaderless_at = -math.inf  # Nobody led then, as a later answer of the API server has shown.
        self._standby = Standby(cluster, clock, identity, self.settings)
        self._standbys = Standbys(cluster, clock, identity, self.settings)

    @property
    def leading(self) -> bool:
        """True while this process holds the lease."""
        return self._clock.monotonic() < self._deadline

    @property
    def leaderless_s(self) -> float:
        """Return the seconds since nobody led, as far as this process knows from the API server; infinity if it does
        not know of such a time. They grow while this or another process leads, and while the API server is away."""
        return self._clock.monotonic() - self._leaderless_at

    @property
    def vouches(self) -> bool:
        """True if this process waits for the lease and its answers keep the ranks of scripts alive, because the API
        server has not answered it for some seconds."""
        return self._standby.vouches

    @property
    def standby_answers(self) -> StandbyAnswers:
        """Return what other processes that wait for the lease may have told agents while the API server did not answer
        them."""
        return self._standbys.answers() if self.settings.standbys else StandbyAnswers()

    def check(self) -> None:
        """Raise NotLeading if the lease has expired. It is cheap: call it right before each act that cannot be
        undone."""
        if not self.leading:
            raise NotLeading(f"{self.identity} has not renewed its lease for {self.settings.renew_deadline_s:g} s")

    async def acquire(self) -> int:
        """Wait until this process holds the lease. Return the epoch."""
        watches = [self._watch()] if self.settings.watch else []
        renewals = [self._standby.run()] if self.settings.standbys else []
        async with running(*watches, *renewals):
            while not await self._attempt(self._try_acquire):
                wait_s = self.settings.retry_s * (1 + 0.2 * self._random.random())
                if self.settings.watch and self._rival is not None:
                    left_s = self._rival.expires_at - self._clock.monotonic()
                    wait_s = min(wait_s, left_s + MARGIN_S) if left_s > 0 else wait_s
                await self._until_freed(wait_s)
        log.info("%s leads in epoch %d", self.identity, self.epoch)
        return self.epoch

    async def hold(self) -> None:
        """Renew the lease until it is lost, then raise NotLeading."""
        renewed = True
        async with running(*([self._standbys.follow()] if self.settings.standbys else ())):
            while True:
                await asyncio.sleep(self.settings.retry_s if renewed else self.settings.retry_s / 4)
                renewed = await self._attempt(self._renew)
                self.check()

    async def outgrow(self, epoch: int) -> None:
        """Raise our epoch above one that was found in a status or at an agent. Raise NotLeading if it belongs to a
        later leader.

        It does not if we still hold the lease: then the Lease was deleted, or the job comes from another store.
        """
        while self.epoch <= epoch:
            started = self._clock.monotonic()
            try:
                lease = await self._cluster.get(LEASE, self.settings.namespace, self.settings.name)
            except NotFound:
                raise NotLeading("the lease is gone") from None
            self._refuse_other(lease)
            spec = {**lease["spec"], "renewTime": self._timestamp(), "leaseTransitions": epoch + 1}
            try:
                self._won(await self._cluster.update(LEASE, {**lease, "spec": spec}), started)
            except Conflict:
                continue
            log.info("%s leads in epoch %d: it met epoch %d", self.identity, self.epoch, epoch)

    async def release(self) -> None:
        """Give the lease up, so that the next leader need not wait. A failure is only logged."""
        lease, self._lease, was_leading = self._lease, None, self.leading
        self._deadline = float("-inf")
        if lease is None or not was_leading:
            return
        try:
            async with asyncio.timeout(self.settings.retry_s):
                while not await self._give_up(lease):
                    # A renewal of ours that was interrupted may have taken effect.
                    lease = await self._cluster.get(LEASE, self.settings.namespace, self.settings.name)
                    if lease["spec"].get("holderIdentity") != self.identity:
                        return
        except (ApiError, TimeoutError) as error:
            log.warning("the lease was not released: %s", str(error) or "no answer")

    async def _give_up(self, lease: Object) -> bool:
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
        try:
            await self._cluster.update(LEASE, {**lease, "spec": spec})
        except Conflict:
            return False
        return True

    async def _until_freed(self, seconds: float) -> None:
        """Wait until the lease is released, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._freed.wait()
        except TimeoutError:
            pass
        self._freed.clear()

    async def _watch(self) -> None:
        """Signal when the lease is released; runs until cancelled. Polling finds, a little later, what it misses."""
        while True:
            try:
                lease = await self._cluster.get(LEASE, self.settings.namespace, self.settings.name)
                version = lease["metadata"]["resourceVersion"]
                labels = {LEASE_LABEL: self.settings.name}
                async for event in self._cluster.watch(LEASE, version, self.settings.namespace, labels):
                    if event.type not in (ADDED, MODIFIED):
                        continue
                    # `_is_free` also records a renewal.
                    if self._is_free(event.object["spec"], self._clock.monotonic()):
                        self._freed.set()
            except ApiError as error:
                log.debug("the lease can't be watched: %s", error)
            await asyncio.sleep(self.settings.retry_s)

    async def _attempt(self, act: Callable[[], Awaitable[bool]]) -> bool:
        try:
            async with asyncio.timeout(self.settings.retry_s):
                return await act()
        except (ApiError, TimeoutError) as error:
            words = str(error) or f"no answer within {self.settings.retry_s:g} s"
            log.warning("lease %s/%s: %s", self.settings.namespace, self.settings.name, words)
            return False

    async def _try_acquire(self) -> bool:
        started = self._clock.monotonic()
        try:
            lease = await self._cluster.get(LEASE, self.settings.namespace, self.settings.name)
        except NotFound:
            lease = self._new()
            try:
                self._won(await self._cluster.create(LEASE, lease), started)
            except AlreadyExists:
                return False
            return True
        self._standby.hear()
        free = self._is_free(lease["spec"], started)
        if free or (self._rival is not None and started > self._rival.stopped_at):
            self._leaderless_at = started
        if not free and not await self._holder_is_gone(lease):
            self.rival_address = (lease["metadata"].get("annotations") or {}).get(ADDRESS, "")
            return False
        self.rival_address = ""
        last_sign = lease["spec"].get("renewTime")
        ours = lease["spec"].get("holderIdentity") == self.identity
        transitions = int(lease["spec"].get("leaseTransitions") or 0)
        new = self._new()
        spec = {**new["spec"], "leaseTransitions": transitions if ours else transitions + 1}
        meta = dict(lease["metadata"])
        for field in ("labels", "annotations"):
            meta[field] = {**(meta.get(field) or {}), **new["metadata"][field]}
        try:
            self._won(await self._cluster.update(LEASE, {**lease, "metadata": meta, "spec": spec}), started)
        except Conflict:
            return False
        if last_sign:
            self.absence = OperatorAbsence(_seconds(str(last_sign)), self._clock.now())
        return True

    async def _holder_is_gone(self, lease: Object) -> bool:
        """Return whether the pod that holds the lease no longer exists: its kubelet has confirmed its end, or
        somebody removed it by force. If that leader still runs, it loses the lease to us at its next renewal, and
        epochs and versions fence off what it writes until then."""
        uid = (lease["metadata"].get("annotations") or {}).get(HOLDER_POD)
        holder = lease["spec"].get("holderIdentity")
        if not uid or not holder:
            return False
        try:
            found = await self._cluster.get(POD, self.settings.namespace, holder)
        except NotFound:
            return True
        except ApiError as error:
            log.debug("whether pod %s is still there is not known: %s", holder, error)
            return False
        return bool(found["metadata"]["uid"] != uid)

    def _is_free(self, spec: Object, now: float) -> bool:
        holder = spec.get("holderIdentity") or ""
        if not holder or holder == self.identity or self.settings.takeover:
            return True
        seen = (holder, str(spec.get("renewTime")), str(spec.get("leaseTransitions")))
        if self._rival is None or self._rival.seen != seen:
            duration_s = float(spec.get("leaseDurationSeconds") or self.settings.duration_s)
            # The renewal was written before its answer came, but perhaps after we asked.
            stopped_at = self._clock.monotonic() + STOPPED_AFTER * duration_s
            self._rival = _Rival(seen, stopped_at, now + duration_s)
        return now > self._rival.expires_at

    async def _renew(self) -> bool:
        assert self._lease is not None
        started = self._clock.monotonic()
        spec = {**self._lease["spec"], "renewTime": self._timestamp()}
        try:
            self._won(await self._cluster.update(LEASE, {**self._lease, "spec": spec}), started)
        except (Conflict, NotFound):
            # A write of ours whose reply was lost also looks like this, so read who holds the lease now.
            lease = await self._cluster.get(LEASE, self.settings.namespace, self.settings.name)
            self._refuse_other(lease)
            self._lease = lease
            return False
        return True

    def _refuse_other(self, lease: Object) -> None:
        holder = lease["spec"].get("holderIdentity")
        if holder != self.identity:
            self._deadline = float("-inf")
            raise NotLeading(f"{holder or 'no process'} holds the lease now")

    def _won(self, lease: Object, started: float) -> None:
        self._lease = lease
        self.epoch = int(lease["spec"]["leaseTransitions"])
        self._deadline = started + self.settings.renew_deadline_s

    def _new(self) -> Object:
        now = self._timestamp()
        return {
            "apiVersion": KINDS[LEASE].api_version,
            "kind": LEASE,
            "metadata": {
                "namespace": self.settings.namespace,
                "name": self.settings.name,
                "labels": {LEASE_LABEL: self.settings.name},
                "annotations": {ADDRESS: self.settings.address, HOLDER_POD: self.settings.pod_uid},
            },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": int(self.settings.duration_s),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 1,
            },
        }

    def _timestamp(self) -> str:
        """Return the present time as metav1.MicroTime."""
        return micro_time(self._clock.now())


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
