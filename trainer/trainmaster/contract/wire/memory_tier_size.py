"""How much memory of a pod checkpoints in memory need, and how much `spec.checkpoint.ram.limit` gives them.

The planner, the ranks and the agents count in this one way: for the whole pod, in bytes.
"""

from __future__ import annotations

FILES = 2  # Each rank writes two files in turn, and a peer keeps the two newest states of each rank.
OTHER = 1 << 20  # Bytes that are counted for a file's header and receipt. Most of them are much smaller.
RECEIPT = 64 << 10  # Bytes that are counted for a receipt if the header alone is larger than that.
RESERVE = 32  # One 32nd of the limit stays free, because files take whole pages.
_UNITS = ((10 << 30, 2**30, "Gi"), (0, 2**20, "Mi"))
_EXACT = ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def budget(limit: int) -> int:
    """Return the bytes that files may take in a pod with this limit."""
    return limit - limit // RESERVE


def limit_of(budget: int) -> int:
    """Return the smallest limit that gives files this budget, in bytes."""
    return -(-budget * RESERVE // (RESERVE - 1))


def file_size(state: int, header: int = 0) -> int:
    """Return the bytes that are counted for a file: its state, its header as far as that is known, and its receipt."""
    return state + max(OTHER, header + RECEIPT)


def needed_limit(file: int, ranks: int, *, copies: bool) -> int:
    """Return the smallest limit, in bytes, of a pod with `ranks` ranks whose files take `file` bytes each.

    With `copies`, the pod keeps those of another pod too, which may take half of its memory for checkpoints.
    """
    own = FILES * ranks * file
    return limit_of(2 * own if copies else own)


def need_words(file: int, ranks: int, *, copies: bool) -> str:
    """Return what a pod needs, as the predicate of a sentence for people about checkpoints in memory."""
    pod = f"{ranks} rank{'s' if ranks > 1 else ''}{', and copies for another pod' if copies else ''}"
    return f"need {_at_least(needed_limit(file, ranks, copies=copies))} in each pod ({pod})"


def shortage(file: int, ranks: int, limit: int, *, copies: bool) -> str:
    """Return the predicate of a sentence for people about checkpoints in memory, which says what limit they need; "" if
    `limit` is enough."""
    need = needed_limit(file, ranks, copies=copies)
    if need <= limit:
        return ""
    return (
        f"{need_words(file, ranks, copies=copies)}, but spec.checkpoint.ram.limit is {exactly(limit)}; "
        f"set spec.checkpoint.ram: {{limit: {_at_least(need)}}}"
    )


def exactly(size: int) -> str:
    """Return bytes as a Kubernetes quantity of the same size, with the largest unit that divides it."""
    return next((f"{size // unit}{suffix}" for unit, suffix in _EXACT if size and size % unit == 0), str(size))


def _at_least(size: int) -> str:
    """Return bytes as a Kubernetes quantity that is never less, and at most a tenth more from 10Mi on."""
    _, unit, suffix = next(one for one in _UNITS if size >= one[0])
    return f"{-(-size // unit)}{suffix}"
