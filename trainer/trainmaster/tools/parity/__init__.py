"""The parity table: each parallel strategy, compared with one process without parallelism.

Both have the same initial weights, the same samples, and SGD with momentum (Adam would hide a wrong scale of the
gradients). The losses of all steps are compared, and the parameters at the end, relative to how far training moved
them. The text is so small that an epoch ends within the run and its last window is short, so the divisor differs
between steps and ranks.

    python -m trainmaster.tools.parity [--only PATTERN] [--json FILE] [--page FILE]
"""

from trainmaster.tools.parity.example import CONTEXT, STEPS, example
from trainmaster.tools.parity.parity_table import compare, compared, main
from trainmaster.tools.parity.row_training import Outcome, merged, train
from trainmaster.tools.parity.row_world import run
from trainmaster.tools.parity.rows import ROWS, Row, reference, select

__all__ = [
    "CONTEXT",
    "ROWS",
    "STEPS",
    "Outcome",
    "Row",
    "compare",
    "compared",
    "example",
    "main",
    "merged",
    "reference",
    "run",
    "select",
    "train",
]
