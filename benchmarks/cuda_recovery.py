"""How fast ranks on CUDA devices come back: zygote, fork, cuInit, NCCL, step, SIGKILL, memory free, next step.

`python -m benchmarks.cuda_recovery [--repetitions 5] [--memory-gib 4] [--json FILE] [--cpu]`

Starts the agent's own zygote, forks one rank a device from it, kills rank 0 after its third step, waits until the
devices have their memory back and forks the next round. Prints a table of phases and, as JSON, all samples.
Exit code 2 and one sentence where there is no CUDA device; `--cpu` goes the same way with one rank that has none.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "trainer"))

from benchmarks import counts  # noqa: E402
from trainmaster.agent.zygote import packets  # noqa: E402
from trainmaster.agent.zygote.variables_that_must_match import load_environment  # noqa: E402
from trainmaster.contract.wire import environment  # noqa: E402
from trainmaster.contract.wire.channel import Channel  # noqa: E402

STEPS = 3
PHASES = (
    "detect",  # SIGKILL sent -> the zygote says that the rank is dead
    "memory_free",  # ... -> the driver shows the memory of all devices as free again
    "fork",  # ... -> the first line of the new ranks
    "cu_init",  # ... -> every rank has a device context
    "nccl",  # ... -> process group and first all-reduce
    "build",  # ... -> model, optimizer and ballast on the device
    "first_step",  # ... -> the first optimizer step, synchronised
)
_PACKET_S = 300.0
_CONNECT_S, _CONNECT_PAUSE_S = 60.0, 0.1


def rank_main() -> None:
    """What each rank runs, in a fork of the zygote. Tells its milestones over the channel."""
    import torch
    import torch.distributed as dist

    channel = Channel.open(int(os.environ["TRAINMASTER_CHANNEL_FD"]))
    marks: dict[str, int] = {"fork": time.monotonic_ns()}
    assert not torch.cuda.is_initialized(), "the zygote has touched CUDA"
    device, wait = torch.device("cpu"), lambda: None
    if os.environ["BENCH_DEVICE"] == "cuda":
        device, wait = torch.device("cuda", int(os.environ["LOCAL_RANK"])), torch.cuda.synchronize
        torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    wait()
    marks["cu_init"] = time.monotonic_ns()
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    token = torch.ones(1, device=device)
    dist.all_reduce(token)
    wait()
    marks["nccl"] = time.monotonic_ns()
    ballast = torch.empty(int(float(os.environ["BENCH_MEMORY_GIB"]) * 2**30), dtype=torch.uint8, device=device)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    wait()
    marks["build"] = time.monotonic_ns()
    for _ in range(STEPS):
        loss = model(torch.randn(64, 1024, device=device)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        wait()
        marks.setdefault("first_step", time.monotonic_ns())
    channel.send("marks", {"marks": marks, "bytes": ballast.numel()})
    signal.pause()


class NoDevices:
    """Stands for one device where there is none: its memory is always free."""

    def __len__(self) -> int:
        return 1

    def used(self) -> list[int]:
        return [0]


class Devices:
    """The driver's view of the devices, through NVML: it needs no context, so it disturbs nothing."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if self._nvml.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self._handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            self._handles.append(handle)

    def __len__(self) -> int:
        return len(self._handles)

    def used(self) -> list[int]:
        """Bytes in use on each device."""

        class Memory(ctypes.Structure):
            _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

        values = []
        for handle in self._handles:
            memory = Memory()
            self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            values.append(int(memory.used))
        return values


class Zygote:
    """The agent's zygote, spoken to directly: the machine's, if the environment names one as it does for agents."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        path = os.environ.get(environment.ZYGOTE)
        self._root = ours = self._connect(path) if path else self._start()
        ours.settimeout(_PACKET_S)
        self._exited: set[int] = set()
        load = load_environment({**os.environ, "PYTHONPATH": ""})
        packets.send(ours, {"op": "hello", "key": "bench", "load": load})
        while True:
            received = packets.receive(ours)
            assert received is not None, "the zygote ended"
            if received[0]["event"] == "zygote":
                assert received[1], "the zygote does not fork: see its words above"
                self._fork = socket.socket(fileno=received[1][0])
                self._fork.settimeout(_PACKET_S)
                return

    def _start(self) -> socket.socket:
        ours, theirs = packets.pair()
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'trainer'}:{ROOT}", "TRAINMASTER_ZYGOTE_MODULES": _modules()}
        argv = [sys.executable, "-m", "trainmaster.agent.zygote.root", "--fd", str(theirs.fileno())]
        self.process = subprocess.Popen(argv, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        return ours

    def _connect(self, path: str) -> socket.socket:
        """It may only just have been started."""
        found, ends = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), time.monotonic() + _CONNECT_S
        while True:
            try:
                found.connect(path)
                return found
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > ends:
                    raise
                time.sleep(_CONNECT_PAUSE_S)

    def start(self, id: int, entry: dict[str, Any], env: dict[str, str], cwd: str) -> Channel:
        ours, theirs = Channel.pair()
        ours.socket.settimeout(_PACKET_S)
        request = {"op": "start", "id": id, "entry": entry, "env": env, "cwd": cwd, "mark": str(id), "fds": ["channel"]}
        packets.send(self._fork, request, [theirs.fileno()])
        theirs.close()
        return ours

    def kill(self, ids: list[int]) -> None:
        packets.send(self._fork, {"op": "signal", "ids": ids, "signal": int(signal.SIGKILL)})

    def wait_exit(self, ids: set[int]) -> None:
        while not ids <= self._exited:
            received = packets.receive(self._fork)
            assert received is not None, "the zygote ended"
            if received[0]["event"] == "exit":
                self._exited.add(received[0]["id"])

    def close(self) -> None:
        self._fork.close()
        self._root.close()
        if self.process is not None:
            self.process.wait(10)


def _modules() -> str:
    return "torch,torch.distributed,torch._dynamo,torch.optim"


def start_round(
    zygote: Zygote, first_id: int, world: int, memory_gib: float, device: str
) -> tuple[list[Channel], Channel]:
    """Fork a store and all ranks; returns their channels."""
    store = zygote.start(first_id + world, {"kind": "store", "host": "127.0.0.1"}, dict(os.environ), "/")
    message = store.receive()
    assert message is not None, "the store ended"
    env = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(message[0]["port"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(world),
        "BENCH_MEMORY_GIB": str(memory_gib),
        "BENCH_DEVICE": device,
        "OMP_NUM_THREADS": "1",
    }
    # Not as a module of its own folder, where a rank would find other packages than those that it imports.
    entry = {"kind": "function", "target": "benchmarks.cuda_recovery:rank_main"}
    ranks = [
        zygote.start(first_id + rank, entry, {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, str(ROOT))
        for rank in range(world)
    ]
    return ranks, store


def marks_of(ranks: list[Channel]) -> dict[str, int]:
    """The time at which the last rank reached each milestone."""
    latest: dict[str, int] = {}
    for channel in ranks:
        while True:
            message = channel.receive()
            assert message is not None, "a rank ended before its third step"
            assert message[0]["kind"] != "failed", message[0].get("traceback")
            if message[0]["kind"] == "marks":
                break
        for name, ns in message[0]["marks"].items():
            latest[name] = max(latest.get(name, 0), ns)
    return latest


def measure(devices: Devices | NoDevices, repetitions: int, memory_gib: float) -> list[dict[str, float]]:
    """Kill and restart `repetitions` times; returns the seconds of each phase, and their total."""
    world = len(devices)
    device = "cpu" if isinstance(devices, NoDevices) else "cuda"
    zygote = Zygote()
    samples = []
    try:
        idle = devices.used()
        first = 1
        ranks, _ = start_round(zygote, first, world, memory_gib, device)
        marks_of(ranks)
        for _ in range(repetitions):
            ids = set(range(first, first + world))
            killed = time.monotonic_ns()
            zygote.kill([first])
            zygote.wait_exit({first})
            clock = {"detect": time.monotonic_ns()}
            zygote.kill(sorted(ids - {first}))
            zygote.wait_exit(ids - {first})
            while any(now > before + (64 << 20) for now, before in zip(devices.used(), idle, strict=True)):
                time.sleep(0.001)
            clock["memory_free"] = time.monotonic_ns()
            zygote.kill([first + world])
            zygote.wait_exit({first + world})
            first += world + 1
            ranks, _ = start_round(zygote, first, world, memory_gib, device)
            clock.update(marks_of(ranks))
            sample, last = {}, killed
            for name in PHASES:
                sample[name] = (clock[name] - last) / 1e9
                last = clock[name]
            sample["total"] = (last - killed) / 1e9
            samples.append(sample)
    finally:
        zygote.close()
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="device memory that each rank holds when it dies")
    parser.add_argument("--json", help="write the samples there too")
    parser.add_argument("--cpu", action="store_true", help="one rank without a device, to see that this program works")
    options = parser.parse_args()
    counts.check(parser, options, repetitions=1, memory_gib=0)
    devices: Devices | NoDevices | None = NoDevices() if options.cpu else None
    if not options.cpu:
        with contextlib.suppress(OSError):
            devices = Devices()
    if devices is None or len(devices) == 0:
        print("cuda_recovery: no CUDA device is at hand here, so there is nothing to measure.", file=sys.stderr)
        return 2
    samples = measure(devices, options.repetitions, options.memory_gib)
    print(f"{'phase':<12} {'median':>9} {'longest':>9}   seconds, {len(samples)} kills, {len(devices)} ranks")
    for name in (*PHASES, "total"):
        values = [sample[name] for sample in samples]
        print(f"{name:<12} {statistics.median(values):>9.3f} {max(values):>9.3f}")
    result = {
        "benchmark": "cuda_recovery",
        "devices": len(devices),
        "memory_gib": options.memory_gib,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "samples": samples,
    }
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
