"""Coroutines that run at the same time: a limited number of calls of the API server, and tasks that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any

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


async def until_one_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all of them until the first one ends, cancel the others, and raise what the first one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
