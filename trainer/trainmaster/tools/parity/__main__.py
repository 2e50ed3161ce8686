from __future__ import annotations

import sys

from trainmaster.tools import closed_stdout
from trainmaster.tools.parity.parity_table import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(closed_stdout.closed())
    except KeyboardInterrupt:
        sys.exit(130)
