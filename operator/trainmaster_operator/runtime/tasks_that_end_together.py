"""Tasks of one process that belong together: when one ends, all of them do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def until_one_ends(*works: Coroutine[Any, Any, Any]) -> Any:
    """Run all of them until the first one ends, cancel the others, and return or raise what the first one did."""
    async with running(*works) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() for task in tasks if task.done()]  # of all: one may have failed in the same moment
        return results[0]


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run works until the body of the `async with` statement ends, and cancel those that have not ended. Yields their
    tasks."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
