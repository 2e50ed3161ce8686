"""The parity table: each parallel strategy against one process that knows of none.

Same initial weights, same samples, SGD with momentum (Adam would hide a wrong scale of the gradients). Compared are
the losses of all steps, and the parameters in the end relative to how far training moved them. The text is so small
that an epoch ends within the run and its last window is short: the divisor differs between steps and ranks.

    python -m trainmaster.parity [--only PATTERN] [--json FILE] [--page FILE]
"""

from trainmaster.parity.rows import CONTEXT, ROWS, Row, example, reference, select
from trainmaster.parity.table import compare, main
from trainmaster.parity.training import Outcome, merged, train
from trainmaster.parity.world import run

__all__ = [
    "CONTEXT",
    "ROWS",
    "Outcome",
    "Row",
    "compare",
    "example",
    "main",
    "merged",
    "reference",
    "run",
    "select",
    "train",
]
