from __future__ import annotations

import os
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
        code = programme.main()
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by way of the interpreter's end: it finds objects of Triton that are still alive, and prints pages about them.
    os._exit(code)
