from __future__ import annotations

from tests.trainer.conftest import ranks

__all__ = ["ranks"]
