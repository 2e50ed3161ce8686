"""Install the environments of all frameworks that are tested: `python -m tests.frameworks.install`."""

from __future__ import annotations

from tests.frameworks.environments import python_of
from tests.frameworks.runs import SUBJECTS

if __name__ == "__main__":
    for name in sorted({subject.environment for subject in SUBJECTS.values()}):
        print(python_of(name), flush=True)
