"""The parity table: each parallel strategy against one process that knows of none.

Same initial weights, same samples, SGD with momentum (Adam would hide a wrong scale of the gradients). Compared are
the losses of all steps, and the parameters in the end relative to how far training moved them. The text is so small
that an epoch ends within the run and its last window is short: the divisor differs between steps and ranks.

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
