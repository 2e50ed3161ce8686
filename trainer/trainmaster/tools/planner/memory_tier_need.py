"""The memory of a pod that checkpoints in memory need, and whether a job gives it."""

from __future__ import annotations

FILES = 2  # Each rank writes two files in turn, and a peer keeps the two newest states of each rank.
OTHER = 1 << 20  # Bytes of a file that are not parameters and optimizer state: its header and what is not a tensor.
_UNITS = ((2**30, "Gi"), (2**20, "Mi"))


def needed(saved: int, in_pod: int, *, copies: bool) -> int:
    """Return the bytes of a pod with `in_pod` ranks that save `saved` bytes each.

    With `copies`, the pod keeps those of another pod too, which may take half of its memory for checkpoints.
    """
    own = FILES * in_pod * (saved + OTHER)
    return 2 * own if copies else own


def words(saved: int, in_pod: int, limit: int, *, copies: bool) -> str:
    """Return a sentence for people: what a pod needs, and whether `limit` bytes are enough. If they aren't, the next
    line has the field to write into the job."""
    need = needed(saved, in_pod, copies=copies)
    said = f"Checkpoints in memory need {_quantity(need)} of each pod"
    if need <= limit:
        return f"{said}; checkpoint.ram.limit, {_quantity(limit)}, is enough.\n"
    return (
        f"{said}, more than checkpoint.ram.limit, {_quantity(limit)}. For spec.checkpoint:\n"
        f"  ram: {{limit: {_quantity(need)}}}\n"
    )


def _quantity(size: int) -> str:
    """Return bytes as a Kubernetes quantity that is never less."""
    unit, suffix = next((one for one in _UNITS if size >= one[0]), _UNITS[-1])
    return f"{-(-size // unit)}{suffix}"
