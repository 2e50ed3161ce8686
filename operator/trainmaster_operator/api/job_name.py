"""The name of a job: its form, its longest length, and what is wrong with a name."""

from __future__ import annotations

import re
from typing import Any

from trainmaster_operator.api.validation.problem import shown

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LIMIT = 50
"""Maximum number of characters in the name of a job. A pod's hostname <job>-<role>-<slot> has at most 63 characters,
and "-worker-99999" takes 13 of them."""


def refusal(name: Any) -> str | None:
    """Return what is wrong with a name, as a sentence without a full stop; None if it is valid."""
    if not isinstance(name, str):
        return f"text is expected, not {shown(name)}"
    if len(name) > NAME_LIMIT:
        return f"at most {NAME_LIMIT} characters are expected, not {len(name)}: hostnames are made from it"
    if re.fullmatch(NAME_PATTERN, name):
        return None
    better = re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "-", name.lower()))
    hint = f", for example {better}" if better else ""
    return (
        f"lower-case letters, digits and '-' are expected, from a letter to a letter or digit{hint}; not {shown(name)}"
    )
