#!/usr/bin/env python
"""Tells what a rank was started with, in one line. It needs nothing but Python."""

import os
import sys
from pathlib import Path

os.chdir("/")
beside = Path(__file__).with_name("tells.py").exists()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "FLAVOUR")
words = [os.environ.get(name, "") for name in names]
print("told", *words, *(w for w in sys.argv[1:] if w != "-f"), beside, flush=True)
