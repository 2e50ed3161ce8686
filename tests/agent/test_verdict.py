from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.agent.shell.ranks.round import Round
from trainmaster.agent.shell.ranks.verdict import End, judge
from trainmaster.contract.wire import Assignment, Cause, ExitCode, Identity, Progress, Report, StoreAddress, encode
from trainmaster.host.failure_signatures import cause_of, is_cascade
from trainmaster_operator.control.http_server import Limits

TRACEBACK = "Traceback (most recent call last):"
GLOO = [
    "Traceback (most recent call last):",
    '  File "train.py", line 18, in <module>',
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Connection reset by peer",
]


def ended(code: int) -> int:
    """The wait status of an exit code, of a signal when negative."""
    return -code if code < 0 else code << 8


@pytest.mark.parametrize(
    ("end", "cause", "message"),
    [
        (End(2, 1, status=ended(-signal.SIGSEGV)), Cause.CRASH, "killed by SIGSEGV"),
        (End(2, 1, status=ended(-signal.SIGKILL)), Cause.CRASH, "killed by SIGKILL"),
        (End(2, 1, status=ended(-signal.SIGKILL), oom_killed=True), Cause.OUT_OF_MEMORY, "out of memory"),
        # A shell that ran the rank's program ends so.
        (End(2, 1, status=ended(137), lines=["run.sh: line 4: Killed"]), Cause.CRASH, "killed by SIGKILL"),
        (End(2, 1, status=ended(137), oom_killed=True), Cause.OUT_OF_MEMORY, "out of memory"),
        (End(2, 1, status=ended(137), exits=True), Cause.CRASH, "exit code 137"),
        (End(2, 1, status=ended(255)), Cause.CRASH, "exit code 255"),
        (End(2, 1, status=ended(3)), Cause.CRASH, "exit code 3"),
        (End(2, 1, status=ended(2)), Cause.CRASH, "exit code 2"),
        (End(2, 1, status=ended(2), own_loop=True), Cause.CONFIG_ERROR, "exit code 2"),
        (End(2, 1, status=ended(ExitCode.DIVERGED)), Cause.DIVERGED, "exit code 92"),
        (
            End(2, 1, status=ended(1), lines=["Traceback (most recent call last):", "KeyError: 'x'"]),
            Cause.CRASH,
            "KeyE",
        ),
        (
            End(2, 1, status=ended(1), lines=["Traceback (most recent call last):", "MemoryError"]),
            Cause.OUT_OF_MEMORY,
            "MemoryError",
        ),
        (End(2, 1, words={"cause": "DataError", "message": "no such shard"}), Cause.DATA_ERROR, "no such shard"),
        (End(2, 1, note="its zygote ended"), Cause.CRASH, "zygote"),
    ],
)
def test_the_cause_is_told_from_status_words_and_output(end: End, cause: Cause, message: str) -> None:
    verdict = judge(end)
    assert verdict.cause is cause
    assert message in verdict.message
    assert not verdict.cascade


def test_what_a_script_prints_after_its_traceback_is_not_taken_for_its_exception() -> None:
    traceback = [TRACEBACK, '  File "train.py", line 18, in <module>', "    step()", "ValueError: the real reason"]
    verdict = judge(End(2, 1, status=ended(1), lines=["step 1", *traceback, "  cleaning up", "wrote 17 files"]))
    assert verdict.message == "ValueError: the real reason"
    assert judge(End(2, 1, status=ended(1), lines=[TRACEBACK, "  File cut off"])).message == "  File cut off"


def test_a_traceback_behind_a_progress_bar_is_read() -> None:
    lines = [" 12%|# | 1/8Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "KeyError: 3"]
    assert judge(End(rank=0, round=1, status=ended(1), lines=lines)).message == "KeyError: 3"


def test_a_traceback_with_a_mark_before_each_line_is_none() -> None:
    lines = ["[x] Traceback (most recent call last):", '[x]   File "t.py", line 1, in <module>', "[x] KeyError: 3"]
    verdict = judge(End(rank=0, round=1, status=ended(1), lines=lines))
    assert verdict.message == "ended with exit code 1; its last output: [x] KeyError: 3"


@pytest.mark.parametrize(
    "words",
    [
        "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error: Collective ops is aborted "
        "by: recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target "
        "/job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:",
        "tensorflow.python.framework.errors_impl.UnavailableError: The following tasks are unhealthy (stopped sending "
        "heartbeats):\n/job:worker/replica:0/task:0\nThe tasks have crashed. [type.googleapis.com/tensorflow."
        "CoordinationServiceError='']",
        "jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] "
        "Read error [127.0.0.1]:3499: Connection reset by peer",
        "xgboost.core.XGBoostError: [18:36:12] /__w/xgboost/xgboost/src/collective/result.cc:83: "
        "- [allreduce.cc:135|18:36:12]: Ring Allreduce failed.\n- [socket.h:79|18:36:12]: Poll error condition:Success",
        "xgboost.core.XGBoostError: [21:13:21] /workspace/src/collective/result.cc:78: "
        "- Failed to shutdown.\n- Failed to connect to the tracker.\n- [socket.cc:97|21:13:21]: Connection refused",
        "ConnectionResetError: the store of this round, 10.0.0.7:29500, ended before all ranks had come",
        "horovod.common.exceptions.HorovodInternalError: [/src/third_party/compatible17_gloo/gloo/gloo/transport/tcp/"
        "pair.cc:589] Read error [127.0.0.1]:3499: Connection reset by peer",
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception "
        "on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks "
        "finished execution.",
    ],
    ids=[
        "TensorFlow",
        "TensorFlow's heartbeats",
        "JAX",
        "XGBoost",
        "XGBoost 2",
        "the store",
        "Horovod",
        "Horovod's shutdown",
    ],
)
def test_a_survivor_of_another_framework_is_not_blamed(words: str) -> None:
    lines = [TRACEBACK, '  File "train.py", line 18, in <module>', *words.splitlines()]
    assert judge(End(0, 1, status=ended(1), lines=lines)).cascade


def test_a_collective_that_lost_its_peer_is_a_cascade_and_a_kill_is_not() -> None:
    assert judge(End(0, 1, status=ended(1), lines=GLOO)).cascade
    assert judge(End(0, 1, status=ended(ExitCode.PEER_LOST))).cascade
    assert judge(End(0, 1, words={"cause": "Crash", "message": "m", "cascade": True})).cascade
    assert not judge(End(0, 1, status=ended(-signal.SIGKILL), lines=GLOO)).cascade


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]:[E1125 09:12:01 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600002 milliseconds",
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
        "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "  what():  [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
        "by store->get('0'), but store->get('0') got error: wait timeout after 600000ms",
    ],
)
def test_a_rank_that_nccls_watchdog_aborts_for_a_peer_is_a_cascade(line: str) -> None:
    terminate = "terminate called after throwing an instance of 'c10::DistBackendError'"
    lines = ["step 12", line, terminate, "Fatal Python error: Aborted"]
    verdict = judge(End(1, 1, status=ended(-signal.SIGABRT), lines=lines))
    assert (verdict.cause, verdict.signal, verdict.cascade) == (Cause.CRASH, "SIGABRT", True)


@pytest.mark.parametrize(
    "line",
    [
        "double free or corruption (!prev)",
        "free(): invalid pointer",
        "python: kernel.cpp:12: void run(int): Assertion `n > 0' failed.",
        "terminate called after throwing an instance of 'std::out_of_range'",
        "  what():  [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an "
        "illegal memory access was encountered",
        "Fatal Python error: none_dealloc: deallocating None",
    ],
)
def test_a_rank_that_aborts_for_a_reason_of_its_own_is_a_crash_even_after_another_ones(line: str) -> None:
    lines = ["NCCL INFO comm 0x5581 rank 1 nranks 2 - Init COMPLETE", "wandb: Connection refused, trying again", line]
    assert not judge(End(1, 1, status=ended(-signal.SIGABRT), lines=lines, peer_failed=True)).cascade


def test_an_abort_without_a_reason_is_a_cascade_only_after_another_ranks_failure() -> None:
    abort = End(1, 1, status=ended(-signal.SIGABRT), lines=["step 12"])
    assert not judge(abort).cascade
    assert judge(replace(abort, peer_failed=True)).cascade
    assert not judge(replace(abort, status=ended(-signal.SIGSEGV), peer_failed=True)).cascade


def test_an_abort_just_after_a_rank_that_lost_its_peer_takes_the_blame_from_nobody() -> None:
    """The cause is in another pod: neither of the two ranks here is it."""

    async def judged() -> Round:
        round = Round(Assignment(1, 4, 0, 2, 0, 2, StoreAddress("", 0), 1), 0, own_loop=True, changed=lambda: None)
        for number, status in ((0, ended(ExitCode.PEER_LOST)), (1, ended(-signal.SIGABRT))):
            output = SimpleNamespace(lines=["step 12"], drain=lambda: None)
            rank: Any = SimpleNamespace(
                number=number,
                status=status,
                ended=True,
                words=None,
                words_of_last_part=lambda: None,
                exits=None,
                told_to_end=False,
                output=output,
                progress=Progress,
            )
            round.ranks.append(rank)
            round.exited(rank)
        return round

    verdict = asyncio.run(judged()).verdict
    assert verdict is not None
    assert (verdict.rank, verdict.cascade) == (0, True)


def test_a_script_that_cannot_reach_its_own_server_is_no_cascade() -> None:
    lines = ["Traceback (most recent call last):", "ConnectionRefusedError: [Errno 111] Connection refused"]
    assert not judge(End(0, 1, status=ended(1), lines=lines)).cascade


def test_the_last_twenty_lines_and_the_last_traceback_are_kept() -> None:
    lines = [f"line {n}" for n in range(50)] + ["Traceback (most recent call last):", "ValueError: no"]
    verdict = judge(End(0, 1, status=ended(1), lines=lines))
    assert len(verdict.last_lines) == 20
    assert verdict.traceback == "Traceback (most recent call last):\nValueError: no"


@pytest.mark.parametrize(
    "text",
    [
        "[1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 94, pid=4711, name=python, Contained: SM (0x1).",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error",
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "node48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
        "mlx5_core 0000:1a:00.0 eth2: Link down",
        "mce: [Hardware Error]: Machine check: Uncorrected, software restartable error",
        "Memory failure: 0x5b8a9: Killing python:4711 due to hardware memory corruption",
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
    ],
)
def test_words_of_the_driver_the_fabric_and_the_kernel_tell_of_failing_hardware(text: str) -> None:
    assert cause_of(text) is Cause.HARDWARE_FAULT
    verdict = judge(End(3, 1, status=ended(-signal.SIGABRT), lines=["step 12", text, "terminate called"]))
    assert (verdict.cause, verdict.message, verdict.cascade) == (Cause.HARDWARE_FAULT, text, False)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, Graphics SM Warp Exception: Illegal Instruction",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, Ch 00000008, MMU Fault",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: NCCL WARN NET/IB : Got completion from peer node48<37948> with status=12 opcode=0 len=0",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 12 minion error",
        "mlx5_core 0000:1a:00.0 eth2: Link up",
    ],
)
def test_what_a_program_can_bring_about_itself_is_no_fault_of_the_hardware(text: str) -> None:
    assert cause_of(text) is Cause.CRASH
    assert judge(End(3, 1, status=ended(-signal.SIGABRT), lines=[text])).cause is Cause.CRASH


def test_a_rank_that_blames_its_peer_beside_a_broken_link_of_its_own_is_no_cascade() -> None:
    lost = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    lines = ["NCCL WARN NET/IB : mlx5_0:1 Got async event : port error", TRACEBACK, lost]
    assert is_cascade(lost)
    assert not is_cascade(f"{lines[0]}\n{lost}")
    verdict = judge(End(3, 1, status=ended(1), lines=lines))
    assert (verdict.cause, verdict.cascade) == (Cause.HARDWARE_FAULT, False)


def test_a_plain_exception_long_after_a_link_flapped_keeps_its_cause() -> None:
    flap = "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    lines = [flap, "step 9", TRACEBACK, "KeyError: 'x'"]
    assert judge(End(3, 1, status=ended(1), lines=lines)).cause is Cause.CRASH


@pytest.mark.parametrize(
    ("text", "on_device"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has", True),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", True),
        ("RuntimeError: CUDA error: out of memory", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("MemoryError", False),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory", False),
        ("terminate called after throwing an instance of 'std::bad_alloc'", False),
    ],
)
def test_the_devices_memory_is_told_from_the_hosts(text: str, on_device: bool) -> None:
    verdict = judge(End(3, 1, status=ended(1), lines=[TRACEBACK, text]))
    assert (verdict.cause, verdict.on_device) == (Cause.OUT_OF_MEMORY, on_device)


def test_the_kernels_kill_is_never_of_the_devices_memory() -> None:
    lines = [TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory."]
    verdict = judge(End(3, 1, status=ended(-signal.SIGKILL), oom_killed=True, lines=lines))
    assert (verdict.cause, verdict.on_device) == (Cause.OUT_OF_MEMORY, False)


def test_diverged_words_name_the_samples_of_the_step() -> None:
    words = {"cause": "Diverged", "message": "step 7: loss is nan", "step": 6, "samples": [48, 56]}
    assert judge(End(0, 1, words=words)).samples == [48, 56]


def test_a_report_of_a_rank_that_printed_binary_data_is_short_enough_for_the_operator() -> None:
    garbage = "\x00" * 4096
    verdict = judge(End(0, 1, status=ended(1), lines=[TRACEBACK, f"  {garbage}", *[garbage] * 198]))
    report = Report(Identity("uid", "space", "job", "worker", 0, 0, "pod"), round=1, verdict=verdict)
    assert len(encode(report)) < Limits().body_bytes
