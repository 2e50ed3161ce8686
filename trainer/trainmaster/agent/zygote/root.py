"""The zygote: `python -m trainmaster.agent.zygote.root --socket PATH`.

Three kinds of processes, all running `fork_server.Server`:
    root      imports nothing heavy; accepts agents, executes programs, starts the others
    pristine  forked from the root at once; has imported torch and the trainer, where there is torch, and run nothing
    learned   forked from the pristine one; has also imported what ranks turned out to need
An agent says which key (interpreter, flags, environment) it is of and is handed a connection to each zygote that
can fork for it, directly: no packet of a rank's life passes through the root.

Packets to the root, in addition to those of `fork_server`:
    {"op": "hello", "key": text, "load": {...}}    load: variables that only a process started with them has
    {"op": "learn", "key": text, "imports": [[name, within], ...], "variables": {...}, "env": {...}}
        what a rank has imported, and the variables that its imports have set; see `import_plan`, `import_log`.
        It may have "own": [...], names of variables that differ between ranks or rounds and are not in "env",
        "barred": [...], modules that did harm in another pod's zygote, and "hurry": true, a rank waits
    {"op": "bar", "key": text}
Packets from the root:
    {"event": "zygote", "kind": "pristine" | "learned" | "none", "modules": n, "barred": [...]} with a connection
        "none": it forks nothing for this agent; with "differs": true because it was started with other variables
    {"event": "note", "message": text}
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from trainmaster.agent.zygote import child_setup, collective_backends, packets, preload, store_process
from trainmaster.agent.zygote.fork_server import Birth, Child, Connection, Server
from trainmaster.agent.zygote.zygote_registry import Nursery
from trainmaster.host import processes
from trainmaster.rank import script_runner

_READ_KMP = ("libiomp5", "libomp")  # Intel's and LLVM's OpenMP
_CANDIDATE_S = 600  # imports that take longer are stuck


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m trainmaster.agent.zygote.root")
    parser.add_argument("--socket", help="path to listen on")
    parser.add_argument("--fd", type=int, help="descriptor of the connection of the one agent that owns this zygote")
    parser.add_argument("--bare", action="store_true", help="execute only: no torch, no forks")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The parent's death is the end: of a kubelet on a laptop, of the agent in a pod.
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    processes.become_subreaper()
    processes.hurry()
    script_runner.forget_launch_path()
    server = Server()
    names = [] if options.bare else preload.names_of_pristine()
    nursery = Nursery(server, forking=bool(names))
    born = nursery.raise_pristine() if names else None
    if born is None:
        if options.fd is not None:
            nursery.adopt(socket.socket(fileno=options.fd), only=True)
        if options.socket:
            nursery.listen(options.socket)
        born = server.serve()
    if born is None:
        nursery.end()
        if options.socket:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(options.socket)
        return
    # From here on this is a child: of the root, then perhaps of the zygotes that follow.
    while born.kind != "start":
        born = _pristine(born, names) if born.kind == "pristine" else _candidate(born)
    _start(born)


def _start(born: Birth) -> None:
    """Become a rank, a store or a program. It does not return."""
    entry = born.request["entry"]
    executed = entry["kind"] == "exec"
    child_setup.become(born, execute=executed)
    if executed:
        child_setup.execute(entry["argv"])
    if entry["kind"] == "store":
        store_process.host(entry["host"])
    child_setup.run(entry)


def _pristine(born: Birth, names: list[str]) -> Birth:
    control = _detach(born)
    os.environ.update(preload.FORK_SAFE)
    failed = preload.preload(names)
    collective_backends.register()
    preload.freeze(hurried=lambda: _has_packet(control))
    threads = processes.thread_count()
    reason = f"importing {','.join(names)} started {threads - 1} threads" if threads > 1 else ""
    if "torch" in failed and not preload.is_absent("torch"):
        reason = f"torch can't be imported: {failed['torch']}"
    if preload.MODULES not in os.environ:  # these are defaults: an image need not have them all
        failed = {name: why for name, why in failed.items() if not why.startswith("ModuleNotFoundError")}
    _raised(control, failed, {"stack": [], "reason": reason} if reason else None)
    if reason:
        os._exit(1)
    return _serve(control)


def _candidate(born: Birth) -> Birth:
    control = _detach(born)
    signal.alarm(_CANDIDATE_S)
    request = born.request
    os.environ.clear()
    os.environ.update({**request["env"], **preload.FORK_SAFE})
    before = dict(os.environ)
    diary = born.fds[1]
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)

    def refuse(refusal: preload.Refusal) -> NoReturn:
        _raised(control, {}, {"stack": refusal.stack, "reason": refusal.reason})
        os._exit(1)

    outcome = preload.learn(request["names"], request["barred"], request["own"], diary, refuse)
    os.close(diary)
    signal.alarm(0)
    if outcome.refused is not None:
        refuse(outcome.refused)
    child_setup.set_by_imports = preload.replayable(before, os.environ, request["variables"])
    _raised(control, outcome.failed, None)
    return _serve(control)


def _raised(control: socket.socket, failed: dict[str, str], refused: dict[str, Any] | None) -> None:
    """Tell the root that this zygote can be forked, or why it can't."""
    with contextlib.suppress(OSError):
        body = {"op": "raised", "modules": len(sys.modules), "failed": failed, "refused": refused}
        packets.send(control, {**body, "reads_kmp": processes.maps_any(_READ_KMP)})


def _has_packet(control: socket.socket) -> bool:
    """Return True if the root has said something: before this zygote has raised itself, that is only `hurry`."""
    return bool(select.select([control], [], [], 0)[0])


def _detach(born: Birth) -> socket.socket:
    """Detach this process from its parent, and return the connection to the root."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    processes.die_with_parent(born.parent, signal.SIGTERM)
    processes.become_subreaper()
    processes.relax()  # importing has time
    return socket.socket(fileno=born.fds[0])


def _serve(control: socket.socket) -> Birth:
    processes.hurry()
    server = Server()
    retiring = False

    def connect(_: Connection, __: dict[str, object], fds: list[int]) -> None:
        server.connect(socket.socket(fileno=fds[0]), closed=lambda _: end_when_unused())

    def candidate(_: Connection, body: dict[str, object], fds: list[int]) -> Birth | None:
        return server.fork(Birth("candidate", body, fds, server.pid), Child(pid=0))

    def retire(_: Connection, __: dict[str, object], ___: list[int]) -> None:
        nonlocal retiring
        retiring = True
        end_when_unused()

    def end_when_unused() -> None:
        if retiring and len(server.connections) <= 1:
            server.running = False

    def ended(_: Connection) -> None:
        server.running = False

    server.handle("connect", connect)
    server.handle("hurry", lambda *_: None)  # it was looked at before
    server.handle("candidate", candidate)
    server.handle("retire", retire)
    server.connect(control, closed=ended)
    born = server.serve()
    if born is None:
        server.end()
        os._exit(0)
    return born


if __name__ == "__main__":
    main()
