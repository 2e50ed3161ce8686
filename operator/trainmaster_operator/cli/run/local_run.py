"""The process tree of a local run: this process has the store, the display and the control channel's socket; the
operator and the kubelet are its children.

If any of them ends, everything ends: the kernel ends both children together with this process, and they end what is
below them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from trainmaster.contract.wire import environment as names
from trainmaster_operator.api.job_spec import Framework
from trainmaster_operator.cli.display import live_display
from trainmaster_operator.cli.display.last_lines import last_words
from trainmaster_operator.cli.display.memory_track import MemoryTrack
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.display.rank_output import RankOutput
from trainmaster_operator.cli.display.rank_pids import RankPids
from trainmaster_operator.cli.display.rank_steps import RankSteps
from trainmaster_operator.cli.display.scenes import Scene
from trainmaster_operator.cli.display.status_diff import OperatorBack, news
from trainmaster_operator.cli.fault_injection import unfired_faults
from trainmaster_operator.cli.fault_injection.run_faults import FaultServer
from trainmaster_operator.cli.output_folder import MEMORY, PIDS, REPORT, STATUS
from trainmaster_operator.cli.refusal import Refusal, why
from trainmaster_operator.cli.report import run_report
from trainmaster_operator.cli.run import local_processes, operator_address, operator_restarts
from trainmaster_operator.cli.run.local_faults import Troublemaker
from trainmaster_operator.cli.run.prepared_run import Prepared
from trainmaster_operator.cli.run.rank_0_output import Rank0Output, Teller
from trainmaster_operator.cli.run.resume_message import from_where
from trainmaster_operator.cli.run.status_file import SAVE_AFTER_S, StatusFile
from trainmaster_operator.cli.run.surviving_processes import Survivors
from trainmaster_operator.cli.stored_state import ENDS_WITH_ITS_RANKS, how_to_go_on, state_of
from trainmaster_operator.cli.this_machine import unenforced_limits
from trainmaster_operator.cluster.port import DELETED, JOB, Object
from trainmaster_operator.control.peer_secrets import KEY_VARIABLE
from trainmaster_operator.control.session_tokens import KEY_BYTES
from trainmaster_operator.local import process_tree
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_faults import Trouble
from trainmaster_operator.local.api_server.store_server import StoreServer
from trainmaster_operator.planning.facts.job_state import JobPhase

RANKS_EVERY_S = 1.0
OPERATOR_ENDS_WITHIN_S = 3.0
KUBELET_ENDS_WITHIN_S = 9.0
SOCKET_PATH_LIMIT = 80  # Of 107 characters; the rest is for the names below the directory.

STOPPED = 130
API = "api.sock"  # The operator's socket of the store.
_IMPORTING = "Python imports what ranks need, once for this run"
_IMPORTING_A_SCRIPT = (
    "a process imports in advance what ranks will need, so that a restart does not import it again; in the first "
    "start, the script still imports all of it itself"
)


class LocalRun:
    """A run of a job on this machine, from its start to its end."""

    def __init__(self, prepared: Prepared, plain: bool, quiet: bool) -> None:
        """`quiet`: what rank 0 prints is not shown."""
        job = prepared.job
        self._prepared = prepared
        self._folder = prepared.folder
        self._key = (job.metadata.namespace, job.metadata.name)
        self._resource: Object = prepared.resource
        self._store = MemoryStore(now=time.time, ids=lambda: str(uuid.uuid4()))
        self._cluster = MemoryCluster(self._store)
        self._scene = Scene.of_training(
            prepared.resource["spec"].get("training"),
            name=job.metadata.name,
            world_size=job.spec.world_size,
            out=_short(self._folder.path),
            status=state_of(prepared.resource),
        )
        self._scripted = job.spec.framework is not Framework.TRAINMASTER
        self._forks = job.spec.recovery.zygote
        self._peer_key = secrets.token_hex(KEY_BYTES)
        self._display = live_display.choose(self._scene, plain)
        self._memory = MemoryTrack.read(self._folder.path / MEMORY)
        self._printed = Rank0Output(
            RankOutput(self._folder.logs, 0, job.spec.workers.ranksPerPod),
            Teller(0, own_loop=not self._scripted, quiet=quiet),
            self._scene,
            self._display,
            _short(self._folder.logs),
        )
        status_file = _short(self._folder.path / STATUS)
        self._status_file = StatusFile(self._folder, status_file, self._display.tell)
        self._unsaved = asyncio.Event()
        self._ended = asyncio.Event()
        self._stop_asked = 0
        self._said: set[str] = set()
        self._rank_steps = RankSteps()
        self._pids = RankPids(self._folder.path / PIDS)
        self._url = operator_address.url(prepared.control)

    async def run(self) -> int:
        """Run until the job ends, or until it has stopped as requested. Return the exit code. No process and no
        temporary file is left."""
        # The status is on disk before anything runs, so that the next run knows in every case which job the directory
        # belongs to.
        try:
            self._folder.begin(self._resource)
        except OSError as error:
            place = _short(self._folder.path / STATUS)
            raise Refusal(f"{place} can't be written: {why(error)}; choose another --out") from None
        run_dir = _make_run_dir()
        process_tree.hurry()  # The store is here: operator and agents wait for it.
        try:
            return await self._run(run_dir)
        finally:
            process_tree.relax()
            shutil.rmtree(run_dir, ignore_errors=True)

    async def _run(self, run_dir: Path) -> int:
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._ask_to_stop, number)
        self._survivors = Survivors()
        self._store.restore({"version": 1, "objects": [self._resource]})
        # Faults may be injected between the operator and the store, but never between the kubelet and the store.
        trouble = Trouble()
        server, api = StoreServer(self._store, run_dir / "store.sock"), StoreServer(self._store, run_dir / API, trouble)
        operator, kubelet = self._children(run_dir)
        troublemaker = Troublemaker(self._store, self._key[0], run_dir, trouble, operator.kill)
        faults = FaultServer(
            run_dir / "faults.sock",
            self._prepared.faults,
            troublemaker.acts,
            lambda text: self._display.tell(News("fault", text, Tone.WARNING)),
        )
        await server.start()
        await api.start()
        await faults.start()
        self._display.start()
        if self._prepared.devices.words:
            self._display.tell(self._prepared.devices.news())
        if words := unenforced_limits.describe(self._prepared.job.spec):
            self._display.tell(News("limits", words))
        if self._prepared.resumes:
            self._display.tell(News("resumes", from_where(self._prepared.job.spec, self._scene.status)))
        if self._prepared.failed_before:
            self._display.tell(News("resumes", self._prepared.failed_before, Tone.WARNING))
        if self._prepared.python is not None:
            self._display.tell(News("python", self._prepared.python.words))
        if names.ZYGOTE not in os.environ and self._forks:
            self._display.tell(News("pending", _IMPORTING_A_SCRIPT if self._scripted else _IMPORTING))
        tasks = [
            asyncio.create_task(work)
            for work in (
                kubelet.keep(),
                operator.keep(),
                self._follow(),
                self._save_status(),
                self._draw(),
                self._look_at_ranks(operator),
                self._printed.follow(),
                self._ended.wait(),
            )
        ]
        failure: BaseException | None = None
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failure = next((error for task in done if (error := task.exception())), None)
        finally:
            for task in tasks[2:]:
                task.cancel()
            at_once = self._stop_asked > 1
            await asyncio.gather(
                operator.end(0 if at_once else OPERATOR_ENDS_WITHIN_S),
                kubelet.end(0 if at_once else KUBELET_ENDS_WITHIN_S),
            )
            await asyncio.gather(*tasks, return_exceptions=True)
            if not at_once:
                self._printed.show_rest()
            self._display.stop()
            await faults.close()
            await api.close()
            await server.close()
            await self._status_file.write(self._resource)
            self._status_file.close()
        if failure is not None and not isinstance(failure, local_processes.ChildFailed):
            raise failure
        return self._conclude(failure, list(unfired_faults.of_run(faults, troublemaker.crashes, self._scene.status)))

    def _children(self, run_dir: Path) -> tuple[operator_restarts.Operator, local_processes.Kubelet]:
        out, logs = self._folder.path, self._folder.logs
        fd = self._prepared.control.fileno()
        variables = {names.OUTPUT_DIR: str(out)}  # For every pod.
        if self._prepared.pods_as_nodes:
            variables[names.PODS_AS_NODES] = "1"
        devices = self._prepared.devices
        if not devices.names and devices.words:
            variables[names.WITHOUT_DEVICES] = devices.words
        if self._prepared.digests:
            variables[names.DIGESTS] = "1"
        if self._prepared.faults:
            variables[names.FAULTS] = self._prepared.faults
            variables[names.FAULT_SOCKET] = str(run_dir / "faults.sock")
        operator = operator_restarts.Operator(
            [
                *("--store", str(run_dir / API), "--control-fd", str(fd), "--control-url", self._url),
                *("--extra-env", json.dumps(variables)),
            ],
            logs / "operator.log",
            {**os.environ, KEY_VARIABLE: self._peer_key},
            fds=[fd],
            died=self._operator_died,
        )
        python = self._prepared.python
        shared = os.environ.get(names.ZYGOTE)  # It is shared by several runs on this machine.
        kubelet = local_processes.Kubelet(
            [
                *("--store", str(run_dir / "store.sock"), "--run-dir", str(run_dir), "--out", str(out)),
                *(("--zygote", shared) if shared else () if self._forks else ("--without-forks",)),
                *(("--devices", ",".join(devices.names)) if devices.names is not None else ()),
                *("--devices-per-pod", str(devices.each)),
            ],
            logs / "kubelet.log",
            {**os.environ, **({names.PYTHON: python.path} if python is not None and python.path else {})},
        )
        return operator, kubelet

    # -- what happens

    async def _follow(self) -> None:
        """Follow every change of the job, until it has ended or has stopped as requested."""
        async for event in self._cluster.watch(JOB, "0", self._key[0]):
            if event.object["metadata"]["name"] != self._key[1]:
                continue
            if event.type == DELETED:
                raise local_processes.ChildFailed("the job was deleted from the store")
            self._resource = event.object
            old, new = self._scene.status, state_of(event.object)
            self._scene.status = new
            self._unsaved.set()
            self._printed.show_new()  # The last output of the rank is shown before the news about the end.
            for piece in news(old, new, scripted=self._scripted):
                self._display.tell(piece)
                if piece.word == "failure":
                    self._printed.after_failure(new.lastFailure)
            stopped = new.phase is JobPhase.SUSPENDED and event.object["spec"].get("suspend")
            if new.phase.finished or stopped:
                self._ended.set()
                return

    async def _save_status(self) -> None:
        """Write status.yaml after changes of the job, a little later so that many changes need one write."""
        while True:
            await self._unsaved.wait()
            await asyncio.sleep(SAVE_AFTER_S)
            self._unsaved.clear()
            await self._status_file.write(self._resource)

    async def _draw(self) -> None:
        while True:
            self._display.draw()
            await asyncio.sleep(live_display.FRAME_S)

    def _operator_died(self, code: int) -> None:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log = _short(self._folder.logs / "operator.log")
        text = f"the operator died ({how}), and a new one starts; ranks that train continue. Its log is {log}"
        self._display.tell(News("operator", text, Tone.WARNING))

    async def _look_at_ranks(self, operator: operator_restarts.Operator) -> None:
        """Read what is known about the ranks, for the picture and the memory curves only, and notice when the
        operator is back."""
        back = OperatorBack()
        url = f"{self._url}/v1/jobs/{self._key[0]}/{self._key[1]}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                before = operator.deaths
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            self._see(await response.json())
                            if (told := back.seen(before, self._scene.ranks)) is not None:
                                self._display.tell(told)
                            # In a thread, because a slow disk must not stop the store.
                            await asyncio.to_thread(self._pids.write, self._scene.ranks)
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                    pass  # The operator is away, or the disk is full; the next attempt will show it.
                await asyncio.sleep(RANKS_EVERY_S)

    def _see(self, view: Mapping[str, Any]) -> None:
        """Take what is known about the job: its ranks, and messages of agents for people. A message of several
        agents is shown once."""
        for event in view["events"]:
            said = f"{event['reason']}: {event['message']}"
            if said not in self._said:
                self._said.add(said)
                self._display.tell(News("note", said))
        of_slot = ("slot", "incarnation", "container_bytes", "container_limit_bytes")
        stepped = self._rank_steps.of_the_job(self._scene.status, view["slots"])
        ranks = [
            {**rank, **{name: slot[name] for name in of_slot}}
            for slot, its_ranks in zip(view["slots"], stepped, strict=True)
            for rank in its_ranks
        ]
        self._scene.ranks = sorted(ranks, key=lambda rank: rank["rank"])
        self._memory.add(time.time(), ranks)

    # -- what is asked of us

    def _ask_to_stop(self, number: int) -> None:
        self._stop_asked += 1
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self._stop_asked > 1:
            self._display.tell(News("stopping", f"{name} again: the run ends at once", Tone.BAD))
            self._ended.set()
            return
        # What the ranks do before they end is news about the job's phase.
        self._display.tell(News("stopping", f"{name}: {ENDS_WITH_ITS_RANKS}", Tone.WARNING))
        # A patch of the memory store takes effect at once and cannot conflict.
        self._store.patch(JOB, *self._key, {"spec": {"suspend": True}})

    # -- the end

    def _conclude(self, failure: BaseException | None, unfired: list[str]) -> int:
        """Print how the run ended, and return the exit code. `unfired`: for each fault that never happened, the
        reason."""
        path = self._folder.path
        with suppress(OSError):  # `trainmaster status` names no process that has ended.
            self._pids.remove()
        try:
            self._memory.write(path / MEMORY)
        except OSError as error:
            sys.stderr.write(f"trainmaster: {_short(path / MEMORY)} can't be written: {why(error)}\n")
        self._scene.goes_on = False
        self._scene.memory = self._memory.describe_nearest()
        self._scene.words = last_words(Path(_short(path)), self._scene.status)
        page = _short(path / REPORT)
        try:
            run_report.write(path)
        except Refusal as refusal:
            sys.stderr.write(f"trainmaster: {refusal}\n")
            page = ""
        live_display.summary(self._scene, Console(file=sys.stdout, highlight=False), page)
        for sentence in self._survivors.named():
            sys.stderr.write(f"trainmaster: {sentence}\n")
        if self._status_file.stale:
            sys.stderr.write(f"trainmaster: {self._status_file.stale}; it has an older state\n")
        for sentence in unfired:
            sys.stderr.write(f"trainmaster: {sentence}\n")
        if failure is not None:
            sys.stderr.write(f"trainmaster: {failure}\n")
            return 1
        phase = self._scene.status.phase
        if phase is JobPhase.SUCCEEDED:
            return unfired_faults.EXIT_CODE if unfired else 0
        if self._stop_asked and phase is not JobPhase.FAILED:
            sys.stdout.write(how_to_go_on(self._resource, self._scene.status, self._prepared.command) + "\n")
            return STOPPED
        return 1


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run. A run that was started with SIGHUP ignored, as by nohup, outlives its
    terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def _make_run_dir() -> Path:
    """Return a new directory with mode 0700 and a path that is short enough for the sockets in it."""
    folder = tempfile.mkdtemp(prefix="trainmaster-")
    if len(folder) > SOCKET_PATH_LIMIT:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="trainmaster-", dir="/tmp")
    return Path(folder)


def _short(path: Path) -> str:
    """Return the path relative to the current directory, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # The current directory may have been deleted.
        return str(path)
