"""Texts of torch, CUDA, NCCL and the kernel in a rank's last words that show the cause of a failure.

Hardware faults are checked first, because the text often goes on with what the fault broke. A text that matches nothing
is a crash.
"""

from __future__ import annotations

import re

from trainmaster.contract.wire.causes_and_exit_codes import Cause, ExitCode

_XIDS = (48, 62, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143, 145, 149)
"""The numbers of the driver's faults that come from the device itself: ECC (48, 64, 94, 95, 140), NVLink (74, 145,
149), off the bus (79), its own processors (62, 110, 119, 120, 136, 143). Others (13, 31, 43, ...) a program can
bring about."""

_HARDWARE = re.compile(
    rf"\bXid \(PCI:[0-9A-Fa-f:.]+\): (?:{'|'.join(map(str, _XIDS))})\b"
    r"|\bSXid \(PCI:[0-9A-Fa-f:.]+\): \d+, Fatal"
    r"|uncorrectable (?:ECC|NVLink) error|double.bit ECC error|cudaErrorECCUncorrectable|cudaErrorNvlinkUncorrectable"
    r"|has fallen off the bus|\bGPU is lost\b|NVML_ERROR_GPU_IS_LOST"
    r"|Invalid access of peer GPU memory over nvlink or a hardware error"
    r"|Got async event : (?:port error|local catastrophic error|device fatal|fatal)"
    r"|\bmlx\d_core [0-9A-Fa-f:.]+.{0,80}\bLink [Dd][Oo][Ww][Nn]\b"
    r"|\[Hardware Error\]:.{0,80}\b(?:[Uu]ncorrected|[Ff]atal)\b|\bEDAC .{0,80}\bUE\b|due to hardware memory corruption"
    r"|\bAER: Uncorrected \(Fatal\) error"
)
_ON_DEVICE = re.compile(
    r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b|\b(?:CUDA|HIP|XPU|MPS backend|CUDA driver error|CUDA error:) "
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
    re.MULTILINE,
)
_ON_HOST = re.compile(
    r"^MemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc",
    re.MULTILINE,
)
_DEVICE = re.compile(r"CUDA|HIP error|cudaError|AcceleratorError|CUBLAS|CUDNN")
_CASCADE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe"
    r"|Socket closed|Remote end closed|remote process exited|peer (?:process )?(?:has )?(?:exited|died|closed)"
    r"|ncclRemoteError|NCCL error: remote process|DistNetworkError|DistStoreError"
    r"|Collective ops is aborted|stopped sending heartbeats|Ring Allreduce failed|Poll error condition"
    r"|ended before all ranks had come|Horovod has been shut down"
    r"|Watchdog caught collective operation timeout|retrieving ncclUniqueId"
    r"|Timed out waiting .{0,40}(?:recv|send|operation)",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(
    r"gloo|nccl|torch[./]distributed|TCPStore|ProcessGroup|c10d|DistBackendError|DistNetworkError"
    r"|Collective ops|CollectiveReduce|tensorflow\.WorkerService|coordination.?service"
    r"|xgboost/src/collective|XGBoostError: .*/src/collective/"  # as the folder of its build is called
    r"|store of this round|HorovodInternalError|Horovod has been shut down",
    re.I,
)

_OWN_ABORT = re.compile(
    r"double free|corrupted (?:size|double-linked|unsorted)|^(?:free|malloc|realloc|munmap_chunk)\(\): "
    r"|stack smashing detected|Assertion .{0,400}failed|Check failed: |pure virtual method called"
    r"|terminate called after throwing an instance of '(?!c10::Dist)|Fatal Python error: (?!Aborted)"
    r"|CUDA error|HIP error|AcceleratorError",
    re.MULTILINE,
)
"""Texts of a process that aborts for a reason of its own."""

_OUTSIDE = (
    r"\b(?:OS|IO|File\w*|Directory|NotADirectory|IsADirectory|Permission|BlockingIO|ChildProcess|ProcessLookup|Interrupted"
    r"|Broken\w*|Connect\w*|Timeout|URL|HTTP\w*|SSL\w*|Proxy|Network\w*|\w*Timeout|RemoteDisconnected|gaierror|herror)"
    r"(?:Error|Exception|Refused\w*|Reset\w*|Aborted\w*)?:"
    r"|No such file or directory|Permission denied|Read-only file system|Input/output error|Stale (?:NFS )?file handle"
    r"|Transport endpoint|temporarily unavailable|Device or resource busy|No space left|Disk quota|Too many open files"
    r"|[Tt]imed out|[Uu]nreachable|[Rr]efused|reset by peer|Name or service not known|name resolution|in use\b"
    r"|cannot open shared object file|[Tt]oo [Mm]any [Rr]equests|\b50[0234] [A-Z]|[Oo]ut of memory|MemoryError|memory\b"
)
"""Exceptions and words that concern something outside of the program. Only agents use this pattern, so it is compiled
when it is first needed."""


def cause_of(text: str) -> Cause:
    """Return the cause that a traceback, or the end of an output, shows."""
    if _HARDWARE.search(text):
        return Cause.HARDWARE_FAULT
    return Cause.OUT_OF_MEMORY if _ON_DEVICE.search(text) or _ON_HOST.search(text) else Cause.CRASH


def hardware_line(lines: list[str], traceback: str) -> str:
    """Return the line of an output that reports failing hardware, "" without one.

    It is "" if there is a traceback that mentions neither a device nor a collective, because that crash has another
    cause.
    """
    if traceback and not (_DEVICE.search(traceback) or _COLLECTIVE.search(traceback)):
        return ""
    return next((line.strip() for line in lines if _HARDWARE.search(line)), "")


def speaks_of_device_or_collective(text: str) -> bool:
    """Return True if a text comes from a device's driver, or from a library for collectives."""
    return bool(_DEVICE.search(text) or _COLLECTIVE.search(text))


def speaks_of_outside(text: str) -> bool:
    """Return True if a text names something outside of the program, such as memory, a network or a file."""
    return bool(re.search(_OUTSIDE, text))


def is_on_device(text: str) -> bool:
    """Return True if the device's memory is exhausted, and not the host's."""
    return bool(_ON_DEVICE.search(text))


def is_cascade(text: str) -> bool:
    """Return True if a traceback shows a collective that failed because the other side went away."""
    return bool(_CASCADE.search(text)) and bool(_COLLECTIVE.search(text)) and not _HARDWARE.search(text)


def is_abort_for_a_peer(lines: list[str], *, peer_failed: bool) -> bool:
    """Return True if a rank that ended by SIGABRT, with these last lines, did so because of another rank.

    NCCL's watchdog reports that others did not take part in a collective, and aborts the process. Without such a line,
    `peer_failed` decides, which says whether another rank failed shortly before, unless the process printed a reason of
    its own.
    """
    if any(is_cascade(line) for line in lines):
        return True
    text = "\n".join(lines)
    return peer_failed and not _OWN_ABORT.search(text) and not _HARDWARE.search(text)


def code_of(cause: Cause, cascade: bool) -> ExitCode:
    """Return the exit code of a rank after an exception with this cause."""
    if cascade:
        return ExitCode.PEER_LOST
    return ExitCode.HARDWARE_FAULT if cause is Cause.HARDWARE_FAULT else ExitCode.CRASH
