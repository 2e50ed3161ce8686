"""The event loop in virtual time: what waits is woken in order, and nothing else moves the clock."""

import asyncio

import pytest

from trainmaster_operator.runtime.virtual_clock import Deadlock, VirtualClock, run_virtual


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set():
    ran = []

    async def main():
        loop = asyncio.get_running_loop()
        for number in (3, 1, 2):
            loop.call_later(5.0, ran.append, number)
        loop.call_later(4.0, ran.append, 0)
        await asyncio.sleep(5.0)

    run_virtual(main())
    assert ran == [0, 3, 1, 2]


def test_a_timer_that_was_cancelled_neither_runs_nor_moves_the_clock():
    clock, ran = VirtualClock(), []

    async def main():
        asyncio.get_running_loop().call_later(50.0, ran.append, 1).cancel()
        await asyncio.sleep(1.0)

    run_virtual(main(), clock)
    assert (ran, clock.monotonic()) == ([], 1.0)


def test_waiting_for_what_nobody_will_do_is_told():
    async def main():
        asyncio.get_running_loop().call_later(50.0, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main())


def test_an_error_in_a_callback_ends_nothing_else():
    ran, told = [], []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        loop.call_soon(lambda: 1 / 0)
        loop.call_soon(ran.append, 1)
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert (ran, told) == ([1], ["division by zero"])
