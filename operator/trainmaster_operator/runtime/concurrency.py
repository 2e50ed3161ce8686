"""Calls of the API server side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator

PARALLEL_CALLS = 32


async def run_all(calls: Iterator[Awaitable[None]], count: int) -> None:
    """Runs a bounded number of them at once. After an error no further ones are started, and it is raised once those
    under way have ended."""
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
