"""Standbys that keep the ranks of scripts alive while the API server is away, and what a leader knows of them.

While the API server is away nobody leads, and the agents of scripts reach nobody but standbys. A standby that is cut
off cannot know whether the API server is away for everybody: it may be cut off together with some agents, while another
operator leads on the other side and replaces their pods. So a standby vouches for agents for a limited time only, and a
leader that does not hear of a standby assumes that it does so.

Each standby renews a Lease of its own. It vouches when the API server has not answered it for VOUCH_AFTER, and until
STANDBY_VOUCHES_S after it sent its last renewal. The leader reads these Leases, and needs no clock but its own: a
renewal was made after the leader sent the last request whose answer did not show it, and before the answer that did.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cluster.port import KINDS, LEASE, POD, ApiError, Cluster, Forbidden, Object
from trainmaster_operator.planning.facts.observation import StandbyAnswers
from trainmaster_operator.planning.placement.replaced_pods import STANDBY_VOUCHES_S
from trainmaster_operator.runtime.clock import Clock, micro_time

if TYPE_CHECKING:
    from trainmaster_operator.runtime.leader.lease import LeaseSettings

log = logging.getLogger(__name__)

STANDBY_LABEL = f"{GROUP}/standby"
"""Label of a standby's Lease. Its value is the name of the leader's Lease."""

VOUCH_AFTER = 8 / 15
"""Share of a Lease's duration for which the API server has not answered a standby that vouches. It is four times the
time between two renewals, so that a leader is seldom in doubt without a reason. It is shorter than the time after which
a leader stops that does not reach the API server, so agents are answered all the time."""


class Standby:
    """This process while it does not lead. `vouches` may be read from any thread."""

    def __init__(self, cluster: Cluster, clock: Clock, identity: str, settings: LeaseSettings) -> None:
        self._cluster, self._clock, self._identity, self._settings = cluster, clock, identity, settings
        self._name = f"{identity}-standby"
        self._vouch_after_s = VOUCH_AFTER * int(settings.duration_s)
        # When the API server last answered. Infinity: it has not yet, or a renewal is under way, which a leader may see
        # before its answer comes.
        self._heard_at = math.inf
        self._renewed_at = -math.inf  # When the last renewal was sent that was confirmed.

    @property
    def vouches(self) -> bool:
        """True if the ranks of scripts may live on, because an answer of this process keeps them alive."""
        now = self._clock.monotonic()
        return now - self._heard_at >= self._vouch_after_s and now - self._renewed_at <= STANDBY_VOUCHES_S

    def hear(self) -> None:
        """Record that the API server has answered."""
        if math.isfinite(self._heard_at):
            self._heard_at = self._clock.monotonic()

    async def run(self) -> None:
        """Renew the Lease of this standby until cancelled. A process that is no standby vouches for nobody."""
        refused = False
        try:
            while True:
                try:
                    async with asyncio.timeout(self._settings.retry_s):
                        await self._renew()
                except (ApiError, TimeoutError) as error:
                    if isinstance(error, Forbidden) and not refused:
                        log.warning("scripts will not survive an outage of the API server: %s", error)
                        refused = True
                await asyncio.sleep(self._settings.retry_s)
        finally:
            self._heard_at, self._renewed_at = math.inf, -math.inf

    async def _renew(self) -> None:
        # A write whose answer is lost may be done or not. So the list comes first, which fails while the API server is
        # away and changes nothing.
        leases = await _list(self._cluster, self._settings)
        own = next((lease for lease in leases if lease["metadata"]["name"] == self._name), None)
        started, self._heard_at = self._clock.monotonic(), math.inf
        try:
            if own is None:
                self._renewed_at = -math.inf
                await self._cluster.create(LEASE, self._new())  # It does not last if the pod's object is gone.
            else:
                await self._cluster.update(LEASE, {**own, "spec": self._new()["spec"]})
                self._renewed_at = started
        finally:
            self._heard_at = self._clock.monotonic()

    def _new(self) -> Object:
        settings = self._settings
        meta: Object = {
            "namespace": settings.namespace,
            "name": self._name,
            "labels": {STANDBY_LABEL: settings.name},
        }
        if settings.pod_uid:  # Then the Lease is deleted with the pod.
            owner = {"apiVersion": "v1", "kind": POD, "name": self._identity, "uid": settings.pod_uid}
            meta["ownerReferences"] = [owner]
        return {
            "apiVersion": KINDS[LEASE].api_version,
            "kind": LEASE,
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(settings.duration_s),
                "renewTime": micro_time(self._clock.now()),
            },
        }


@dataclass(frozen=True)
class _Sign:
    """The last renewal that a leader has seen of a standby. Times are monotonic."""

    renewal: str
    made_after: float
    seen_at: float
    vouch_after_s: float


class Standbys:
    """What a leader knows of the standbys. `answers` may be called from any thread."""

    def __init__(self, cluster: Cluster, clock: Clock, identity: str, settings: LeaseSettings) -> None:
        self._cluster, self._clock, self._identity, self._settings = cluster, clock, identity, settings
        self._asked_at = -math.inf  # When the last list was asked for that was answered.
        self._signs: dict[str, _Sign] = {}  # Is replaced, and never changed, because another thread reads it.
        self._ended_at = -math.inf  # Before this time, a standby may have vouched that is known not to do so any more.
        self._refused = False

    def answers(self) -> StandbyAnswers:
        """Return what standbys may have told agents."""
        if self._refused and self._asked_at == -math.inf:
            return StandbyAnswers()  # Other replicas have the same rights, so no standby vouches.
        # They are read in the opposite order of that in which `_look` writes them.
        asked_at, signs, until = self._asked_at, self._signs, self._ended_at
        now, name = self._clock.monotonic(), ""
        if now - asked_at >= VOUCH_AFTER * self._settings.duration_s:
            until = now  # There may be a standby that is not known yet.
        for standby, sign in signs.items():
            if now - sign.made_after >= sign.vouch_after_s and (end := sign.seen_at + STANDBY_VOUCHES_S) > until:
                name, until = standby, end
        return StandbyAnswers(now - until, name if until > now else "")

    async def follow(self) -> None:
        """Read the Leases of the standbys until cancelled. Any failure is retried."""
        while True:
            try:
                async with asyncio.timeout(self._settings.retry_s):
                    await self._look()
            except (ApiError, TimeoutError) as error:
                self._refused = isinstance(error, Forbidden)
                log.debug("the Leases of the standbys can't be read: %s", error)
            await asyncio.sleep(self._settings.retry_s / 2)

    async def _look(self) -> None:
        asked_at = self._clock.monotonic()
        leases = await _list(self._cluster, self._settings)
        now = self._clock.monotonic()
        signs: dict[str, _Sign] = {}
        for lease in leases:
            spec = lease["spec"]
            name = spec.get("holderIdentity") or ""
            if name in ("", self._identity):
                continue
            sign = self._signs.get(name)
            if sign is None or sign.renewal != spec.get("renewTime"):
                vouch_after_s = VOUCH_AFTER * float(spec["leaseDurationSeconds"])
                sign = _Sign(spec.get("renewTime", ""), self._asked_at, now, vouch_after_s)
            signs[name] = sign
        for name, sign in self._signs.items():
            if signs.get(name) is not sign and now - sign.made_after >= sign.vouch_after_s:
                self._ended_at = max(self._ended_at, min(now, sign.seen_at + STANDBY_VOUCHES_S))
        self._signs, self._asked_at = signs, asked_at
        for lease in leases:
            if lease["spec"].get("holderIdentity") == self._identity:  # From when this process was a standby.
                await self._cluster.update(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})


async def _list(cluster: Cluster, settings: LeaseSettings) -> list[Object]:
    return (await cluster.list(LEASE, settings.namespace, {STANDBY_LABEL: settings.name})).items
