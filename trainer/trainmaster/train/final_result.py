"""final.json: the last step of a run, its loss, and the digest of its state."""

from __future__ import annotations

import json

from trainmaster.host import atomic_write
from trainmaster.rank.metrics_writer import finite
from trainmaster.rank.reporter import Reporter


def write_final_result(reporter: Reporter, step: int, loss: float, digest: str) -> None:
    """Write final.json into the output folder, if there is one. An error becomes an event: the steps are done, and
    whether the last one is saved is told elsewhere."""
    if reporter.output is None:
        return
    final = {"step": step, "round": reporter.round, "loss": finite(loss), "digest": digest}
    try:
        atomic_write.write(reporter.output / "final.json", json.dumps(final) + "\n")
    except OSError as error:
        reporter.event("FinalNotWritten", f"final.json is missing: {error}")
