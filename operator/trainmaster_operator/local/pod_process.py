"""One Pod of a local run: a process with its own session, log file, directory for temporary files, and token."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainmaster.contract.wire import environment, fault_protocol
from trainmaster_operator.cluster.port import Object
from trainmaster_operator.local import process_tree
from trainmaster_operator.local.container_variables import expand_all, of_container
from trainmaster_operator.local.process_tree import Process, Table

POD_IP = "127.0.0.1"
DEFAULT_COMMAND = ["python", "-m", "trainmaster.agent"]
MESSAGE_BYTES = 4096  # Maximum size of the termination log: Kubernetes' own limit.
LAST_LINES_BYTES = 2048  # Number of bytes of the log that are used if there is no termination log.
SHORT_NAME = 32


class StartError(Exception):
    """The command could not be started. The message says which command, and why."""


def faults_socket(run_dir: Path, name: str, uid: str) -> Path:
    """Return the socket at which the agent in this Pod accepts injected faults."""
    return run_dir / "pods" / _short(name) / "tmp" / fault_protocol.folder(uid).name / fault_protocol.SOCKET


class LocalPod:
    """Starts, signals and ends the process of the Pod `obj`. It is the process of the first container; others do not
    run in a local run. This class does not use the store."""

    def __init__(self, obj: Object, run_dir: Path, out: Path, zygote: Path, memory: Path | None = None) -> None:
        """`zygote`: the socket of the zygote that forks its ranks. `memory`: a directory on a tmpfs, below which the
        Pod gets its memory volume."""
        self.obj = obj
        self.uid: str = obj["metadata"]["uid"]
        self.name: str = obj["metadata"]["name"]
        short = _short(self.name)
        self.folder = run_dir / "pods" / short
        self.ram = memory / short if memory is not None else None
        self.zygote = zygote
        self.log = out / "logs" / f"{self.name}.log"
        self.exited = asyncio.Event()
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> str:
        """Create the directories and the token. Return the sha256 of the token in hexadecimal digits."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True)
        (self.folder / "tmp").mkdir(mode=0o700)
        if self.ram is not None:
            shutil.rmtree(self.ram, ignore_errors=True)
            self.ram.mkdir(mode=0o700)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        token = secrets.token_urlsafe(32)
        descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        return hashlib.sha256(token.encode()).hexdigest()

    def start(self, base: Mapping[str, str]) -> None:
        """Start the process. Raise StartError. Call this from the main thread: the pod ends with the thread that
        started it."""
        container = self.obj["spec"]["containers"][0]
        given = self._given(container)
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        command = expand_all(words, given) or DEFAULT_COMMAND
        if command == DEFAULT_COMMAND:
            # Scripts may run with another Python; agents always run with ours.
            command = [sys.executable, *command[1:]]
        kubelet = os.getpid()

        def in_child() -> None:
            process_tree.die_with_parent(signal.SIGKILL)
            if os.getppid() != kubelet:
                os._exit(1)  # The kubelet died between fork and prctl.
            process_tree.relax()

        try:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=container.get("workingDir") or None,
                    env={**base, **self._variables(given)},
                    start_new_session=True,
                    preexec_fn=in_child,
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise StartError(f"can't start {command[0]!r}: {error}") from error

    def ended(self, status: int) -> None:
        """Record that the process has been reaped. `status`: its exit code, negative for a signal."""
        assert self.process is not None
        self.process.returncode = status
        self.exited.set()

    def terminate(self) -> None:
        """Send SIGTERM to the process group, if it still runs."""
        if self.process is not None and not self.exited.is_set():
            process_tree.kill_group(self.process.pid, signal.SIGTERM)

    def kill(self) -> int:
        """Kill all processes that it has started, in whatever group they are. Return their number."""
        return process_tree.kill_all(self._tree)

    def last_words(self) -> str:
        """Return the termination log or, without one, the end of the log."""
        try:
            text = self._termination_log.read_bytes()[:MESSAGE_BYTES]
        except OSError:
            text = b""
        if not text.strip():
            try:
                with open(self.log, "rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINES_BYTES))
                    text = file.read()
            except OSError:
                text = b""
        return text.decode(errors="replace").strip()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.ram is not None:
            shutil.rmtree(self.ram, ignore_errors=True)

    @property
    def _token_file(self) -> Path:
        return self.folder / "token"

    @property
    def _termination_log(self) -> Path:
        return self.folder / "termination-log"

    def _given(self, container: Object) -> dict[str, str]:
        """Return the variables of the container itself. Raise StartError for one that has no value on this machine."""
        meta = self.obj["metadata"]
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": meta["namespace"],
            "metadata.uid": self.uid,
            "status.podIP": POD_IP,
        }
        try:
            return of_container(container, fields)
        except ValueError as error:
            raise StartError(str(error)) from None

    def _variables(self, given: dict[str, str]) -> dict[str, str]:
        """Return the variables of the process: those of the container and those of this pod."""
        ram = {environment.RAM_DIR: str(self.ram)} if self.ram is not None and environment.RAM_BUDGET in given else {}
        return {
            **given,
            **ram,
            environment.POD_UID: self.uid,
            environment.POD_IP: POD_IP,
            environment.ONE_MACHINE: "1",
            environment.TOKEN_FILE: str(self._token_file),
            environment.TERMINATION_LOG: str(self._termination_log),
            environment.ZYGOTE: str(self.zygote),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def _tree(self, all_processes: Table) -> Iterable[Process]:
        """Return the processes of its session, the processes that were executed with its uid, and all processes
        below these. Ranks are not among them, because they belong to the zygote."""
        if self.process is None:
            return []
        mark = f"{environment.POD_UID}={self.uid}"
        mine = {p.pid: p for p in all_processes.values() if p.session == self.process.pid}
        for process in process_tree.below([os.getpid()], all_processes):
            if process.pid not in mine and process_tree.started_with(process.pid, mark):
                mine[process.pid] = process
        mine.update({p.pid: p for p in process_tree.below(list(mine), all_processes)})
        return mine.values()


def _short(name: str) -> str:
    """Return a short name for directories: the paths of sockets in TMPDIR (multiprocessing creates some) must stay
    below 107 bytes."""
    return name if len(name) <= SHORT_NAME else hashlib.sha256(name.encode()).hexdigest()[:16]
