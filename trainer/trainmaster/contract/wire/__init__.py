"""The wire contract between the operator, the agents and the ranks.

Standard library only and Python 3.10 compatible: the agent's supervisor runs from an init container inside
images that we don't control. Every message carries the protocol number; the operator speaks n and n-1 and
both sides ignore fields that they don't know.

A module of this package is imported with the first of its names that is used: most users need only the names of the
environment variables, and the messages would take a tenth of the time in which a job is validated.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.contract.wire.causes_and_exit_codes import EXIT_CODES, Cause, ExitCode, Recurrence
    from trainmaster.contract.wire.checkpoint_format import Chunk, Lineage, Manifest, Receipt, ShardFile, TensorIndex
    from trainmaster.contract.wire.message_codec import PROTOCOL, WireError, altered, decode, encode
    from trainmaster.contract.wire.messages import (
        LEADERLESS_HEADER,
        SESSION_HEADER,
        Assignment,
        CheckpointRecord,
        Directive,
        DirectiveState,
        Granted,
        Identity,
        JoinRequest,
        Neighbour,
        RankReport,
        RankState,
        Report,
        StoreAddress,
        Verdict,
    )
    from trainmaster.contract.wire.pod_usage import Usage
    from trainmaster.contract.wire.progress_record import Control, Phase, Progress, ProgressRecord
    from trainmaster.contract.wire.stalled_uploads import STALLED_AFTER_S, UploadReport
    from trainmaster.contract.wire.training_times import Trained

__all__ = [
    "EXIT_CODES",
    "LEADERLESS_HEADER",
    "PROTOCOL",
    "SESSION_HEADER",
    "STALLED_AFTER_S",
    "Assignment",
    "Cause",
    "CheckpointRecord",
    "Chunk",
    "Control",
    "Directive",
    "DirectiveState",
    "ExitCode",
    "Granted",
    "Identity",
    "JoinRequest",
    "Lineage",
    "Manifest",
    "Neighbour",
    "Phase",
    "Progress",
    "ProgressRecord",
    "RankReport",
    "RankState",
    "Receipt",
    "Recurrence",
    "Report",
    "ShardFile",
    "StoreAddress",
    "TensorIndex",
    "Trained",
    "UploadReport",
    "Usage",
    "Verdict",
    "WireError",
    "altered",
    "decode",
    "encode",
]

_NAMES = {
    "causes_and_exit_codes": ("EXIT_CODES", "Cause", "ExitCode", "Recurrence"),
    "checkpoint_format": ("Chunk", "Lineage", "Manifest", "Receipt", "ShardFile", "TensorIndex"),
    "message_codec": ("PROTOCOL", "WireError", "altered", "decode", "encode"),
    "messages": (
        "LEADERLESS_HEADER",
        "SESSION_HEADER",
        "Assignment",
        "CheckpointRecord",
        "Directive",
        "DirectiveState",
        "Granted",
        "Identity",
        "JoinRequest",
        "Neighbour",
        "RankReport",
        "RankState",
        "Report",
        "StoreAddress",
        "Verdict",
    ),
    "pod_usage": ("Usage",),
    "progress_record": ("Control", "Phase", "Progress", "ProgressRecord"),
    "stalled_uploads": ("STALLED_AFTER_S", "UploadReport"),
    "training_times": ("Trained",),
}
"""The names of this package, by the modules that define them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used. Raises AttributeError for an unknown name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
