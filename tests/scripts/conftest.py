from __future__ import annotations

from tests.e2e.conftest import warm

__all__ = ["warm"]
