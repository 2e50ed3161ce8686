"""The command `python -m trainmaster.tools.planner`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from trainmaster.tools.planner.command import main  # takes seconds, in which Ctrl-C may come

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
