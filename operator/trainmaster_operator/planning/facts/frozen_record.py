"""`dataclass` for values that are never changed, and are made by the thousand: a pass makes dozens.

A frozen dataclass sets each of its fields by a call, so a wide one takes several times as long to make as a plain one.
The type checker sees these frozen; at run time they are plain ones that hash by their fields.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen):
        return dataclasses.dataclass(unsafe_hash=frozen)
