"""Time and chance are injected everywhere, else the simulator would not be deterministic."""

import re
from pathlib import Path

import trainmaster_operator

ROOT = Path(trainmaster_operator.__file__).parent
EDGES = {"clock.py", "local.py", "kubernetes.py", "__main__.py"}  # where a process starts, real time and chance come in
EDGES |= {"certificates.py"}  # keys are made of chance
EDGES |= {"soak.py"}  # stops after a time
FORBIDDEN = [
    r"^\s*(import|from) (time|datetime|uuid|secrets)\b(?! import datetime, timezone)",
    r"\brandom\.(random|randint|choice|uniform|shuffle|seed)\(",
    r"\bRandom\(\)",
    r"\bos\.urandom\b",
    r"datetime\.(now|utcnow|today)\(",
    r"for \w+ in (set\(|\{[^:}]*\}:)",
]


def test_the_runtime_and_the_fleet_use_no_clock_and_no_chance_of_their_own():
    found = []
    for folder in ("runtime", "control", "planning", "manifests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name in EDGES:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if any(re.search(pattern, line) for pattern in FORBIDDEN):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
