"""The zygote that a local run starts if none serves this machine already. It is started again when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trainmaster_operator.local import process_tree

BACK_OFF_S = (0.1, 30.0)
"""First and longest wait in seconds before a zygote that ended is started again."""

log = logging.getLogger("trainmaster.kubelet")


class LocalZygote:
    """One zygote, a child of the kubelet that starts it. The kubelet reaps it and calls `ended`."""

    def __init__(
        self, command: list[str], socket: Path, out: Path, environment: Mapping[str, str], stopping: asyncio.Event
    ) -> None:
        """`socket`: where it listens. `out`: the output folder, with its log. `stopping`: set when it is not started
        again."""
        self._command = command
        self._socket = socket
        self._out = out
        self._environment = environment
        self._stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._back_off_s = BACK_OFF_S[0]

    @property
    def pid(self) -> int | None:
        """Its process id; None if it has not been started."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the zygote. Log an error if its program cannot be started."""
        self._socket.unlink(missing_ok=True)
        kubelet = os.getpid()

        def in_child() -> None:
            process_tree.die_with_parent(signal.SIGKILL)
            if os.getppid() != kubelet:
                os._exit(1)
            process_tree.relax()

        try:
            with open(self._out / "logs" / "zygote.log", "ab") as output:
                self._process = subprocess.Popen(
                    [*self._command, "--socket", str(self._socket)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=in_child,
                )
        except OSError as error:
            log.error("can't start the zygote %s: %s", self._command, error)

    def ended(self, code: int) -> None:
        """Record that the process was reaped, and start another one after a while. `code`: as in `Popen.returncode`."""
        assert self._process is not None
        self._process.returncode = code
        if self._stopping.is_set():
            return
        log.warning("the zygote ended with %d; again in %.1f s", code, self._back_off_s)
        asyncio.get_running_loop().call_later(self._back_off_s, self._start_again)
        self._back_off_s = min(2 * self._back_off_s, BACK_OFF_S[1])

    def _start_again(self) -> None:
        if not self._stopping.is_set():
            self.start()
