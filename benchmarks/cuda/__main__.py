from __future__ import annotations

import sys

from benchmarks.cuda import surroundings

if __name__ == "__main__":
    surroundings.prepare()
    lacking = surroundings.lacking()
    if lacking:
        print(f"cuda: {lacking}", file=sys.stderr)
        sys.exit(2)
    from benchmarks.cuda import programme

    try:
        sys.exit(programme.main())
    except KeyboardInterrupt:
        sys.exit(130)
