"""`trainmaster logs DIR`: what the ranks of a run on this machine printed, from the logs of its pods.

The lines have no times. So the pods are shown one after the other, the one that printed last at the end; while a run is
followed, lines are shown as they arrive.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainmaster_operator.cli import output_folder
from trainmaster_operator.cli.display.rank_output import Tail, pod_logs, rank_of, silent, slot_of
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.stored_state import slots_in_rank_order

LOOK_S = 0.1


def of_run(out: Path, rank: int | None, follow: bool, sleep: Callable[[float], Any] = time.sleep) -> int:
    """Write what one rank printed, or what all ranks printed if `rank` is None, until now or until the run ends.
    Return 0. Raise Refusal."""
    _check(output_folder.read_run(out), rank)
    logs = out / output_folder.LOGS
    if not follow and not pod_logs(logs):
        raise Refusal(f"{out}: its ranks have printed nothing: none of its pods has started; --follow waits for output")
    tails: dict[Path, Tail] = {}
    wrote = 0
    while True:
        # This is read first, so that everything before the end is read after it.
        goes_on = follow and output_folder.is_held(out)
        while (lines := _write_new(logs, tails, rank)) is not None:
            wrote += lines
        sys.stdout.buffer.flush()
        if not goes_on:
            if rank is not None and not wrote:
                sys.stderr.write(silent(rank))
            return 0
        sleep(LOOK_S)


def _check(resource: dict[str, Any], rank: int | None) -> None:
    """Raise Refusal for a rank that the job never had."""
    workers = resource["spec"].get("workers") or {}
    slots = slots_in_rank_order(resource)
    ranks = max(len(slots), workers.get("replicas") or 1) * (workers.get("ranksPerPod") or 1)
    if rank is not None and not 0 <= rank < ranks:
        raise Refusal(f"--rank {rank}: {resource['metadata']['name']} has ranks 0 to {ranks - 1}")


def _write_new(logs: Path, tails: dict[Path, Tail], rank: int | None) -> int | None:
    """Write new lines and return their number; None if no pod has printed anything since."""
    found: int | None = None
    for path in pod_logs(logs):
        tail = tails.setdefault(path, Tail(path))
        while (lines := tail.read()) is not None:
            found = found or 0
            for line in lines:
                if (text := _shown(path, line, rank)) is not None:
                    sys.stdout.buffer.write(text + b"\n")
                    found += 1
    return found


def _shown(path: Path, line: bytes, rank: int | None) -> bytes | None:
    """Return a line as it is shown, or None if it is not shown."""
    who = rank_of(line)
    if rank is not None:
        return line if who == rank else None
    return line if who is not None else f"[worker-{slot_of(path)}] ".encode() + line
