"""Who may read metrics: the API server says whose token a scraper has, and whether its owner may get /metrics.

An answer is valid for a minute. While the API server is away, a scraper that was allowed recently stays allowed,
because metrics are needed most when something is wrong. Reviews of unknown tokens share one allowance, so that a flood
of them costs the API server little; a scraper that was allowed before does not depend on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from typing import Protocol

from trainmaster_operator.cluster.port import ApiError, Scraper
from trainmaster_operator.control.fleet import Monotonic, Refused
from trainmaster_operator.control.rate_limits import Allowance, Bucket

log = logging.getLogger(__name__)

PATH = "/metrics"
ROLE = "trainmaster-metrics-reader"
HOLDS_S = 60.0
AWAY_S = 600.0  # Seconds for which an allowed scraper stays allowed while the API server does not answer.
MOST_KNOWN = 256
UNKNOWN_REVIEWS = Allowance(rate=5, burst=50)

NO_TOKEN = (
    "a bearer token is missing: send the token of a ServiceAccount that may get /metrics (ClusterRole " + ROLE + ")"
)
UNKNOWN = "the API server does not recognise this token: it may have expired, or it belongs to another cluster"


class Reviewer(Protocol):
    """A cluster that reviews scrapers."""

    async def review_scraper(self, token: str, path: str) -> Scraper | None:
        """Return who owns the token and whether it may get the path. See KubernetesCluster."""
        ...


@dataclass(frozen=True)
class _Answer:
    scraper: Scraper | None
    at: float  # Monotonic.


class MetricsAccess:
    """Call `check` for each request. Only the hash of a token is stored."""

    def __init__(self, reviewer: Reviewer, clock: Monotonic) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._answers: dict[bytes, _Answer] = {}  # By hash of the token, the oldest first.
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}
        self._unknown = Bucket(UNKNOWN_REVIEWS, clock.monotonic())

    async def check(self, authorization: str) -> None:
        """Check the Authorization header of a request. Raise Refused: 401 without a token that the API server
        recognises, 403 if its owner may not read metrics, 429 and 503 if it cannot be checked now."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Refused(401, NO_TOKEN)
        if not token.isascii() or not token.isprintable():
            raise Refused(401, UNKNOWN)
        scraper = (await self._answer(token)).scraper
        if scraper is None:
            raise Refused(401, UNKNOWN)
        if not scraper.allowed:
            raise Refused(403, f"{scraper.username} may not get {PATH}: bind the ClusterRole {ROLE} to it")

    async def _answer(self, token: str) -> _Answer:
        digest = hashlib.sha256(token.encode()).digest()
        known, now = self._answers.get(digest), self._clock.monotonic()
        if known is not None and now - known.at < HOLDS_S:
            return known
        was_allowed = _allows(known)
        task = self._asking.get(digest)
        if task is None:
            wait_s = 0.0 if was_allowed else self._unknown.take(now)
            if wait_s:
                raise Refused(
                    429, "too many unknown tokens are waiting for a review: try again later", max(wait_s, 1.0)
                )
            task = self._asking[digest] = asyncio.create_task(self._review(digest, token))
        try:
            return await asyncio.shield(task)  # Another scrape may wait for the same answer.
        except ApiError as error:
            if known is not None and was_allowed and now - known.at < AWAY_S:
                return known
            log.warning("a scraper's token could not be reviewed: %s", error)
            raise Refused(503, "the API server could not review this token; try again") from None

    async def _review(self, digest: bytes, token: str) -> _Answer:
        try:
            answer = _Answer(await self._reviewer.review_scraper(token, PATH), self._clock.monotonic())
        finally:
            del self._asking[digest]
        self._answers.pop(digest, None)
        self._answers[digest] = answer
        self._forget()
        return answer

    def _forget(self) -> None:
        """Remove the oldest answers; first those that allow nothing, because anybody can cause them."""
        while len(self._answers) > MOST_KNOWN:
            useless = (digest for digest, answer in self._answers.items() if not _allows(answer))
            del self._answers[next(useless, None) or next(iter(self._answers))]


def _allows(answer: _Answer | None) -> bool:
    return answer is not None and answer.scraper is not None and answer.scraper.allowed
