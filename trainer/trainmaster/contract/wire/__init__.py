"""The wire contract between the operator, the agents and the ranks.

Standard library only and Python 3.10 compatible: the agent's supervisor runs from an init container inside
images that we don't control. Every message carries the protocol number; the operator speaks n and n-1 and
both sides ignore fields that they don't know.
"""

from trainmaster.contract.wire.causes_and_exit_codes import EXIT_CODES, Cause, ExitCode, Recurrence
from trainmaster.contract.wire.checkpoint_format import Chunk, Lineage, Manifest, Receipt, ShardFile, TensorIndex
from trainmaster.contract.wire.message_codec import PROTOCOL, WireError, altered, decode, encode
from trainmaster.contract.wire.messages import (
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
