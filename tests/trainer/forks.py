"""The process that ranks of tests are forked from: it has imported the trainer, and run no operation of torch.

It takes requests from the descriptor in argv, forks, waits, answers. Besides worlds of ranks it forks a process that
calls functions for tests (`Ranks.call`), in which whoever is tested can fork ranks, and others of its own kind.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import runpy
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from trainmaster.agent.zygote import collective_backends
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.host import hugepages, processes

STRAGGLERS_S = 30  # after the first rank failed: what then still runs hangs in a collective
PRELOADED = (
    "trainmaster.train.user_loop",
    "trainmaster.tools.parity",
    "trainmaster.data.token_windows",
    "trainmaster.models.gpt",
    "trainmaster.models.llama",
    "trainmaster.models.moe_router_and_balance",
    "torch.distributed.checkpoint",
)
"""What ranks import besides the loop, and what imports itself when it is first needed."""
COMPILER = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_gpu",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.choices",
    "torch._dynamo.backends.inductor",
    "torch.export._trace",
    "torch.utils.cpp_extension",
)
"""The same of torch.compile: 700 modules."""


def _serve(channel: Channel) -> None:
    gc.disable()
    for name in ("trainmaster.train.loop", *PRELOADED):
        importlib.import_module(name)
    gc.enable()
    collective_backends.register()  # as in the agent's zygote: it takes 10 ms of each rank's start
    _settle()
    others: list[int] = []
    while (received := channel.receive()) is not None:
        request, fds = received
        pids = []
        if request["kind"] == "run":
            pids = [_fork(channel, request, rank, fds) for rank in range(request["world_size"])]
        elif request["kind"] == "calls":
            others.append(_fork_calls(channel, fds[0]))
        elif request["kind"] == "twin":
            others.append(_fork_twin(channel, fds[0]))
            channel.send("twin", {"pid": others[-1]})
        elif request["kind"] == "preload compiler":
            import_compiler()
        for fd in fds:  # of a rank that dies nobody else may have them
            os.close(fd)
        if pids:
            codes = _wait(channel, pids)
            with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
                channel.send("done", {"codes": codes})
    for pid in others:
        os.waitpid(pid, 0)
    os._exit(0)  # the interpreter would take its time to clear away what torch has imported


def _settle() -> None:
    """Make forks cheap: their garbage collector leaves what is here alone, and their memory is few pages."""
    gc.collect()
    gc.freeze()
    hugepages.collapse()


def import_compiler() -> None:
    """Import what torch.compile needs, for forks of this process. Starts no thread."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # or a pool of processes starts; our ranks set it, too
    for name in COMPILER:
        importlib.import_module(name)
    _settle()


def _wait(channel: Channel, pids: list[int]) -> list[int]:
    """The exit codes of ranks, negative ones of signals. Those that are left when the caller says `end`, or a while
    after the first one that failed, are killed."""
    codes: dict[int, int] = {}
    running = {os.pidfd_open(pid): pid for pid in pids}
    poll = select.poll()
    for fd in (channel.fileno(), *running):
        poll.register(fd, select.POLLIN)
    deadline: float | None = None
    while running:
        ready = poll.poll(None if deadline is None else max(deadline - time.monotonic(), 0) * 1000)
        if not ready or channel.fileno() in dict(ready):
            if ready:
                channel.receive()
            for pid in running.values():
                os.kill(pid, signal.SIGKILL)
            deadline = None
        for fd in [fd for fd, _ in ready if fd in running]:
            pid = running.pop(fd)
            poll.unregister(fd)
            os.close(fd)
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if codes[pid] and deadline is None:
                deadline = time.monotonic() + STRAGGLERS_S
    return [codes[pid] for pid in pids]


def _fork(channel: Channel, request: dict[str, Any], rank: int, fds: list[int]) -> int:
    def run() -> None:
        channel.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        ids = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["world_size"])}
        os.environ.update({**ids, **request["env"]})
        if fds:
            os.environ[environment.PROGRESS_FD] = str(fds[2 * rank])
            os.environ[environment.CHANNEL_FD] = str(fds[2 * rank + 1])
            for fd in fds[: 2 * rank] + fds[2 * rank + 2 :]:
                os.close(fd)
        if request["script"]:
            sys.argv = [request["script"]]
            runpy.run_path(request["script"], run_name="__main__")
        else:
            import trainmaster.train.loop

            trainmaster.train.loop.main()

    return forked(run)


def _fork_calls(channel: Channel, fd: int) -> int:
    def run() -> None:
        channel.close()
        calls = Channel.open(fd)
        while (received := calls.receive()) is not None:
            calls.send("called", _called(**received[0]))

    return forked(run)


def _fork_twin(channel: Channel, fd: int) -> int:
    def run() -> None:
        channel.close()
        _serve(Channel.open(fd))

    return forked(run)


def _called(module: str, name: str, arguments: list[Any], **_: Any) -> dict[str, Any]:
    variables = dict(os.environ)
    try:
        return {"returned": getattr(importlib.import_module(module), name)(*arguments)}
    except (Exception, SystemExit):  # noqa: BLE001 whoever calls is told
        return {"raised": traceback.format_exc()}
    finally:
        if os.environ != variables:  # those of a rank of one test are none of the next one's business
            os.environ.clear()
            os.environ.update(variables)


def forked(run: Callable[[], None]) -> int:
    """The pid of a fork that does nothing else than `run`, and ends with this process at the latest."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    processes.die_with_parent(parent)
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            del os.environ[name]
    code = 1
    try:
        run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 a fork must not run on into the caller
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # nobody reads it any more, or `run` has put it away
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Channel.open(int(sys.argv[1])))
