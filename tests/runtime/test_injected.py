"""Time and chance are injected everywhere, else the simulator would not be deterministic."""

import re
from pathlib import Path

import simulation
import trainmaster_operator

OPERATOR, SIMULATION = (Path(package.__file__).parent for package in (trainmaster_operator, simulation))
FOLDERS = [*(OPERATOR / name for name in ("runtime", "control", "planning", "manifests")), SIMULATION]
# Where a process starts, real time and chance come in.
EDGES = {"clock.py", "kubernetes_operator.py", "__main__.py"}
EDGES |= {"certificates.py"}  # keys are made of chance
EDGES |= {"soak.py"}  # stops after a time
FORBIDDEN = [
    r"^\s*(import|from) (time|datetime|uuid|secrets)\b(?! import datetime\b)",
    r"\brandom\.(random|randint|choice|uniform|shuffle|seed)\(",
    r"\bRandom\(\)",
    r"\bos\.urandom\b",
    r"datetime\.(now|utcnow|today)\(",
    r"for \w+ in (set\(|\{[^:}]*\}:)",
]


def test_the_runtime_and_the_fleet_use_no_clock_and_no_chance_of_their_own():
    found = []
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            if path.name in EDGES:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if any(re.search(pattern, line) for pattern in FORBIDDEN):
                    found.append(f"{path.relative_to(folder.parent)}:{number}: {line.strip()}")
    assert found == []
