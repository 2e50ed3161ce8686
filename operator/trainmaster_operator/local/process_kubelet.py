"""The kubelet of a local run: it runs Pods as processes, and starts a zygote if none serves this machine already.

It must end everything below it in every case: on SIGTERM, which the kernel also sends when its parent dies, and when
the store is closed. As a subreaper it is the parent of every orphan below it, so if it has no children, nothing is
left. If it is killed itself, the kernel kills the pods and the zygote.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainmaster_operator.cluster.port import DELETED, POD, Conflict, Gone, NotFound, Object, Unavailable
from trainmaster_operator.local import kubelet_status, memory_volumes, process_tree
from trainmaster_operator.local.api_server.store_client import SocketCluster
from trainmaster_operator.local.inherited_variables import base_environment
from trainmaster_operator.local.local_zygote import LocalZygote
from trainmaster_operator.local.pod_cuda_devices import DevicePool
from trainmaster_operator.local.pod_process import POD_IP, LocalPod, StartError

NODE = "local"
LOST = "trainmaster.dev/node-lost"
"""An annotation for tests of lost nodes: the Pod's processes are killed and its status is no longer updated, as when
its node dies."""
NODE_GRACE_S = 40.0  # Seconds until a cluster notices that by itself and sets condition Ready of the Pod to false.
GRACE_AT_THE_END_S = 3.0
GIVE_UP_S = 8.0
# A stopped store is not a dead one: the death of a store shows at once, as a closed connection.
STORE_TIMEOUT_S = 600.0

log = logging.getLogger("trainmaster.kubelet")


class Tracked:
    """A Pod for which this kubelet is responsible, and the task that runs it."""

    def __init__(self, obj: Object, local: LocalPod) -> None:
        self.latest = obj
        self.local = local
        self.deleting = asyncio.Event()  # It must end, or is gone from the store already.
        self.gone = asyncio.Event()  # It is gone from the store.
        self.lost = False  # Its node is simulated as lost, so nothing about it is reported any more.
        self.deadline: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class Kubelet:
    """Runs the Pods of a store as processes on this machine."""

    def __init__(
        self,
        cluster: SocketCluster,
        run_dir: Path,
        out: Path,
        zygote_command: list[str],
        memory: Path | None = None,
        zygote: Path | None = None,
        devices: DevicePool | None = None,
    ) -> None:
        """`memory`: a directory on a tmpfs. `zygote`: the socket of a zygote that serves this machine already;
        without it `zygote_command` is started. `devices`: the devices of the run; without it pods see what this
        process sees."""
        self.cluster = cluster
        self.run_dir = run_dir
        self.memory = memory
        self.out = out
        self.zygote = zygote or run_dir / "zygote.sock"
        self.environment = base_environment(os.environ)
        self.stopping = asyncio.Event()
        self._zygote: LocalZygote | None = None
        if zygote is None:
            self._zygote = LocalZygote(zygote_command, self.zygote, out, self.environment, self.stopping)
        self._pods: dict[str, Tracked] = {}  # By uid.
        self._by_pid: dict[int, LocalPod] = {}
        self._reaped = asyncio.Event()
        self._devices = devices or DevicePool(None)
        # Set when devices are released, or when a pod that waits for devices must end.
        self._devices_freed = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or until the store is gone. Return when everything below this process has ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        # Ctrl-C is for the command, which then sends SIGTERM to this process.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        if self._zygote is not None:
            self._zygote.start()
        following = asyncio.create_task(self._follow())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stopping.set()
            for task in [following, stopping, *(pod.task for pod in self._pods.values() if pod.task)]:
                task.cancel()
            await self._end_everything()
        if following.done() and not following.cancelled():
            following.result()

    async def _follow(self) -> None:
        """Pass the changes of Pods to their tasks until the store is gone."""
        try:
            while True:
                listing = await self.cluster.list(POD)
                present = {obj["metadata"]["uid"] for obj in listing.items}
                for uid in [uid for uid in self._pods if uid not in present]:
                    self._vanish(uid)
                for obj in listing.items:
                    self._see(obj)
                with suppress(Gone):
                    await self._watch(listing.resource_version)
        except Unavailable as error:
            log.warning("the store is gone: %s", error)

    async def _watch(self, version: str) -> None:
        while True:
            async for event in self.cluster.watch(POD, version):
                version = event.object["metadata"]["resourceVersion"]
                if event.type == DELETED:
                    self._vanish(event.object["metadata"]["uid"])
                elif event.type != "BOOKMARK":
                    self._see(event.object)

    def _see(self, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = Tracked(obj, LocalPod(obj, self.run_dir, self.out, self.zygote, self.memory))
            pod.task = asyncio.create_task(self._live(pod))
            pod.task.add_done_callback(lambda task: self._forget(uid, task))
        elif int(obj["metadata"]["resourceVersion"]) > int(pod.latest["metadata"]["resourceVersion"]):
            pod.latest = obj
        if LOST in (pod.latest["metadata"].get("annotations") or {}) and not pod.lost:
            self._lose(pod)
        if pod.latest["metadata"].get("deletionTimestamp"):
            self._end_in(pod, float(pod.latest["metadata"]["deletionGracePeriodSeconds"]))

    def _lose(self, pod: Tracked) -> None:
        pod.lost = True
        pod.local.kill()
        asyncio.get_running_loop().call_later(NODE_GRACE_S, lambda: asyncio.ensure_future(self._miss(pod)))

    async def _miss(self, pod: Tracked) -> None:
        """Do what a node controller does for a lost node: set Ready to false and leave everything else as the
        kubelet last reported it."""
        with suppress(NotFound, Conflict, Unavailable):
            obj = await self.cluster.get(POD, *_name(pod))
            if obj["metadata"]["uid"] == pod.local.uid:
                changed = {"lastTransitionTime": kubelet_status.now()}
                ready = {"type": "Ready", "status": "False", **changed}
                conditions = [ready, {"type": "ContainersReady", "status": "True", **changed}]
                await self.cluster.update_status(POD, {**obj, "status": {**obj["status"], "conditions": conditions}})

    def _vanish(self, uid: str) -> None:
        """End a Pod at once that was removed from the store by force. There is nothing to report to."""
        if pod := self._pods.get(uid):
            pod.gone.set()
            self._end_in(pod, 0.0)

    def _end_in(self, pod: Tracked, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        if not pod.deleting.is_set():
            pod.deleting.set()
            self._devices_freed.set()
            pod.local.terminate()
        elif pod.deadline is not None and deadline >= pod.deadline:
            return
        if pod.timer:
            pod.timer.cancel()
        pod.deadline = deadline
        pod.timer = loop.call_later(grace_s, pod.local.kill)

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        pod = self._pods.pop(uid, None)
        if pod and pod.timer:
            pod.timer.cancel()
        if not task.cancelled() and (error := task.exception()):
            log.error("pod %s: %s", uid, error, exc_info=None if isinstance(error, Unavailable) else error)
            self.stopping.set()

    async def _live(self, pod: Tracked) -> None:
        """Run a Pod from its start to its end. The task ends when the watch reports that the Pod is gone, because
        earlier events still name it."""
        status = pod.latest.get("status") or {}
        if status.get("phase") not in ("Succeeded", "Failed"):
            with suppress(NotFound):
                await self._run_pod(pod)
            if pod.local.process is not None:
                await pod.local.exited.wait()  # Its devices are free after that.
            self._devices.give_back(pod.local.uid)
            self._devices_freed.set()
        await pod.deleting.wait()
        with suppress(NotFound, Conflict):  # It is gone, or another pod already has the name.
            if not pod.gone.is_set() and not pod.lost:
                await self.cluster.delete(POD, *_name(pod), uid=pod.local.uid, grace_s=0)
        pod.local.remove_folder()
        await pod.gone.wait()

    async def _run_pod(self, pod: Tracked) -> None:
        if pod.latest["spec"].get("nodeName"):
            words = "its kubelet died, and the pod with it"
            await self._report(pod, kubelet_status.failed(pod.latest, "KubeletLost", words))
            return
        devices = await self._take_devices(pod)
        if devices is None:
            return
        try:
            pod.latest = await self.cluster.bind(*_name(pod), NODE)
        except Conflict:
            await pod.deleting.wait()
            return
        try:
            digest = pod.local.prepare()
        except OSError as error:
            await self._report(pod, kubelet_status.failed(pod.latest, "StartError", f"can't make its folders: {error}"))
            return
        # Before the process starts, so that the operator knows the token when the agent first presents it.
        known = {"podIP": POD_IP, "hostIP": POD_IP, "podIPs": [{"ip": POD_IP}], "tokenSha256": digest}
        await self._report(pod, {**known, "startTime": kubelet_status.now()})
        if pod.deleting.is_set():
            return
        try:
            pod.local.start({**self.environment, **devices})
        except StartError as error:
            await self._report(pod, kubelet_status.failed(pod.latest, "StartError", str(error)))
            return
        assert pod.local.process is not None
        self._by_pid[pod.local.process.pid] = pod.local
        started = kubelet_status.now()
        await self._report(pod, kubelet_status.running(pod.latest, started))
        await pod.local.exited.wait()
        pod.local.kill()  # Kill processes that it left behind, as when PID 1 of a container ends.
        if not pod.gone.is_set() and not pod.lost:
            await self._report(pod, kubelet_status.terminated(pod.latest, pod.local, started))

    async def _take_devices(self, pod: Tracked) -> Mapping[str, str] | None:
        """Wait until the Pod's devices are free, and return the variables that name them; None if the Pod must end
        first."""
        while not pod.deleting.is_set():
            variables = self._devices.take(pod.local.uid)
            if variables is not None:
                return variables
            self._devices_freed.clear()
            await self._devices_freed.wait()
        return None

    async def _report(self, pod: Tracked, status: Object) -> None:
        """Merge `status` into the Pod's status. Raise NotFound if the Pod is gone."""
        obj = pod.latest
        while True:
            try:
                wanted = {**obj, "status": {**(obj.get("status") or {}), **status}}
                obj = await self.cluster.update_status(POD, wanted)
                break
            except Conflict:
                obj = await self.cluster.get(POD, *_name(pod))
                if obj["metadata"]["uid"] != pod.local.uid:
                    raise NotFound(f"pod {pod.local.name} was replaced") from None
        if int(obj["metadata"]["resourceVersion"]) > int(pod.latest["metadata"]["resourceVersion"]):
            self._see(obj)

    def _reap(self) -> None:
        """Reap every child that has ended, adopted orphans too; called on SIGCHLD."""
        self._reaped.set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pod := self._by_pid.pop(pid, None):
                pod.ended(code)
            elif self._zygote is not None and pid == self._zygote.pid:
                self._zygote.ended(code)

    async def _end_everything(self) -> None:
        """Send SIGTERM to the pods and, a little later, SIGKILL to everything that is left, until no child remains."""
        loop = asyncio.get_running_loop()
        for pod in self._pods.values():
            pod.local.terminate()
        until = loop.time() + GRACE_AT_THE_END_S
        while self._by_pid and await self._next_reaping(until):
            pass
        until = loop.time() + GIVE_UP_S - GRACE_AT_THE_END_S
        while True:
            process_tree.kill_all(lambda everyone: process_tree.below([os.getpid()], everyone))
            self._reap()
            if _childless() or not await self._next_reaping(until):
                return

    async def _next_reaping(self, until: float) -> bool:
        """Wait until a child ends. Return False if none has ended by the time `until`."""
        self._reaped.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._reaped.wait()
                return True
        return False


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _name(pod: Tracked) -> tuple[str, str]:
    return pod.latest["metadata"]["namespace"], pod.local.name


async def serve(
    store: Path, run_dir: Path, out: Path, zygote_command: list[str], zygote: Path | None, devices: DevicePool
) -> None:
    cluster = SocketCluster(store, STORE_TIMEOUT_S)
    try:
        with memory_volumes.folder() as memory:
            await Kubelet(cluster, run_dir, out, zygote_command, memory, zygote, devices).run()
    finally:
        await cluster.close()
        shutil.rmtree(run_dir, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="trainmaster-kubelet", description="Runs Pods as processes.")
    parser.add_argument("--store", type=Path, required=True, help="unix socket of the store")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of this run, removed at the end")
    parser.add_argument("--out", type=Path, required=True, help="output folder: logs/<pod>.log")
    command = shlex.join([sys.executable, "-m", "trainmaster.agent.zygote.root"])
    parser.add_argument("--zygote-command", default=command, help=argparse.SUPPRESS)
    parser.add_argument("--zygote", type=Path, help="socket of a zygote that serves this machine already")
    parser.add_argument("--without-forks", action="store_true", help="start a zygote that only executes programs")
    parser.add_argument("--devices", metavar="A,B", help="what pods find in CUDA_VISIBLE_DEVICES (default: as here)")
    parser.add_argument("--devices-per-pod", type=int, default=0, metavar="N", help="of these, each pod has N alone")
    options = parser.parse_args()
    # SIGTERM is blocked until it is handled, because this process has a directory to remove.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    process_tree.die_with_parent(signal.SIGTERM)
    process_tree.adopt_orphans()
    process_tree.hurry()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s kubelet %(levelname)s %(message)s")
    store, run_dir, out = (path.resolve() for path in (options.store, options.run_dir, options.out))
    names = None if options.devices is None else [name for name in options.devices.split(",") if name]
    devices = DevicePool(names, options.devices_per_pod)
    zygote_command = [*shlex.split(options.zygote_command), *(["--bare"] if options.without_forks else [])]
    asyncio.run(serve(store, run_dir, out, zygote_command, options.zygote, devices))


if __name__ == "__main__":
    main()
