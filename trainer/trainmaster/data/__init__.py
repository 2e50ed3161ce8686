"""Data sources whose order is a pure function of (seed, samples consumed, slot of the batch).

The batch of a step has `batch.global` slots. Slot s of a step that starts after `consumed` samples holds sample
`consumed + s` of the endless sequence of epochs. So every world size sees the same samples, and one integer is enough
to resume. Positions that are left out (`skipped_samples`) are passed over. The import of this package imports neither
torch nor numpy; `build` does.
"""

from __future__ import annotations

from trainmaster.data.build_source import build, build_of
from trainmaster.data.data_fits_batch_and_model import check, objective
from trainmaster.data.data_sources import SOURCES, find, validate
from trainmaster.data.source import IGNORED, Batch, Source

__all__ = ["IGNORED", "SOURCES", "Batch", "Source", "build", "build_of", "check", "find", "objective", "validate"]
