"""Causes of a failure and the exit-code contract."""

from __future__ import annotations

from enum import Enum, IntEnum


class Cause(str, Enum):
    """Why a rank, a pod or a job failed. The first failure decides; failures that follow from it do not count."""

    CRASH = "Crash"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    STRAGGLER = "Straggler"
    HARDWARE_FAULT = "HardwareFault"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    AGENT_LOST = "AgentLost"
    DIVERGED = "Diverged"
    DATA_ERROR = "DataError"
    CONFIG_ERROR = "ConfigError"
    IMAGE_ERROR = "ImageError"
    UNSCHEDULABLE = "Unschedulable"
    REFUSED = "Refused"
    PREEMPTED = "Preempted"
    STORE_LOST = "StoreLost"
    FENCED = "Fenced"
    CHECKPOINT_FAILED = "CheckpointFailed"


class Recurrence(str, Enum):
    """How likely it is that a program fails in the same way if it is started again, judged by its last output."""

    UNKNOWN = "Unknown"  # what failed lies, or may lie, outside of the program: memory, a device, a network, a file
    LIKELY = "Likely"  # an exception or an exit code of the program's own
    CERTAIN = "Certain"  # the program can't be loaded, or refuses its arguments


class ExitCode(IntEnum):
    """Exit codes that have a meaning for the agent (docs/exit-codes.md).

    A user's script may use the codes from 90 on, too. Every other code that is not 0 is a crash.
    """

    OK = 0
    CRASH = 1
    CONFIG_ERROR = 2
    SAVED = 90  # stopped on request after a checkpoint: suspended or preempted, not finished
    DATA_ERROR = 91
    DIVERGED = 92
    DO_NOT_RESTART = 93
    FENCED = 94  # a newer round owns the storage
    PEER_LOST = 95  # a collective failed because another rank died: never the first cause
    HARDWARE_FAULT = 96  # this machine's device or link is broken: the next pod goes elsewhere
    NOT_SAVED = 97  # all steps are done, but the last one could not be saved


EXIT_CODES: dict[int, Cause] = {
    ExitCode.CONFIG_ERROR: Cause.CONFIG_ERROR,
    ExitCode.DATA_ERROR: Cause.DATA_ERROR,
    ExitCode.DIVERGED: Cause.DIVERGED,
    ExitCode.DO_NOT_RESTART: Cause.CONFIG_ERROR,
    ExitCode.FENCED: Cause.FENCED,
    ExitCode.HARDWARE_FAULT: Cause.HARDWARE_FAULT,
    ExitCode.NOT_SAVED: Cause.CHECKPOINT_FAILED,
}
"""The cause that an exit code alone shows. Code 2 counts only from our own loop, because scripts use 2 for anything."""
