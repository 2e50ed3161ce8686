"""Calls of the API server that run at the same time, for the pods of a job: at most PARALLEL_CALLS at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

PARALLEL_CALLS = 32


async def run_all(calls: Iterator[Awaitable[None]], count: int) -> None:
    """Run the calls, at most PARALLEL_CALLS at once. After an error no further call is started, and the error is
    raised when the calls under way have ended. `count`: number of calls."""
    stopped = False

    async def work() -> None:
        nonlocal stopped
        while not stopped and (call := next(calls, None)) is not None:
            try:
                await call
            except BaseException:
                stopped = True
                raise

    workers = [work() for _ in range(min(count, PARALLEL_CALLS))]
    for result in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
