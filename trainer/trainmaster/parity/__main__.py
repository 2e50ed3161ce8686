from __future__ import annotations

import sys

from trainmaster import stdout
from trainmaster.parity.table import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(stdout.closed())
    except KeyboardInterrupt:
        sys.exit(130)
