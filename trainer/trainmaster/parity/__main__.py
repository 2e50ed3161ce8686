from __future__ import annotations

import sys

from trainmaster.parity.table import main

if __name__ == "__main__":
    sys.exit(main())
