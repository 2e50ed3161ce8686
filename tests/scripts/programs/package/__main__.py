"""The same as a package: `python -m package`, `python package`."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "tells.py"), run_name="__main__")
