"""Lets tests import the modules of CI as CI's own program does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / ".ci"))
