"""A `dataclass` decorator for immutable values that are created in large numbers; each pass creates dozens.

A frozen dataclass sets each field through a function call, so creating a wide one takes several times as long as
creating a plain one. The type checker sees these classes as frozen; at run time they are plain classes that hash by
their fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen):
        return dataclasses.dataclass(unsafe_hash=frozen)
