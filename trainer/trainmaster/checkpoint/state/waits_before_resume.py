"""What a round waits for before it resumes: ranks of earlier rounds and their uploads, and storage that can't be
written to."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from trainmaster.checkpoint.files import lineage
from trainmaster.checkpoint.files.storage import Storage
from trainmaster.contract.wire.checkpoint_format import Lineage
from trainmaster.rank.reporter import Reporter

DEADLINE_S = 120.0
"""Seconds that a round waits for ranks of earlier rounds, and again for their uploads."""
_POLL_S = 0.0005

PATIENCE_S = 20.0
"""Seconds that a round waits for storage that can't be written to, if the reason may pass."""
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR)
_TRY_EVERY_S = 0.05


def await_ranks(reporter: Reporter) -> None:
    """Wait for the end of ranks of earlier rounds on this machine, because they may still save to memory."""
    _wait(reporter, lambda: reporter.control().ranks_ending)


def await_uploads(reporter: Reporter) -> None:
    """Wait for uploads of earlier rounds from this machine, because storage's newest checkpoint may be among them."""
    pending = _wait(reporter, lambda: reporter.control().uploads_pending)
    if pending:
        reporter.event("UploadsPending", f"{pending} uploads are still under way: resuming without them")


def _wait(reporter: Reporter, count: Callable[[], int]) -> int:
    """Wait until `count` returns 0, and return its last result."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := count()) > 0 and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        reporter.beat()
    return left


def begin_when_writable(storage: Storage, taken: Lineage, say: Callable[[str, str], None]) -> None:
    """Take the storage for a round, and retry for PATIENCE_S seconds after errors that may pass. Raises OSError."""
    until = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            return lineage.begin(storage, taken)
        except OSError as error:
            if error.errno not in _PASSING or time.monotonic() > until:
                raise
            if not told:
                say(
                    "StorageUnavailable",
                    f"checkpoint folder {storage.root}: {error}; waiting until it can be written to",
                )
            told = True
            time.sleep(_TRY_EVERY_S)
