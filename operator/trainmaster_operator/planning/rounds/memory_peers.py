"""Which pod keeps copies of which pod's memory. One number describes it, so the rule stays small at any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import eq

from trainmaster_operator.planning.facts.view import View

MOST_TRIED = 64


def shift(view: View, order: Sequence[int]) -> int:
    """Return the distance d: copies of the k-th slot of the round go to the slot at k + d, modulo the size; 0: no
    copies.

    A peer on the same node is lost together with the slot. Slots of one node are often next to each other, so small
    distances are tried; if none separates all pairs, the one that separates most is used.
    """
    ram = view.spec.ram
    if ram is None or not ram.copies or len(order) < 2:
        return 0
    nodes = [pod.node if (pod := view.pods[slot]) is not None else "" for slot in order]
    # If a node holds more than half of the slots, not all of them can have a partner on another node.
    unavoidable = max(0, 2 * max(Counter(nodes).values()) - len(nodes))
    best, fewest = 1, len(order) + 1
    for distance in range(1, min(len(order), MOST_TRIED + 1)):
        together = sum(map(eq, nodes, nodes[distance:] + nodes[:distance]))
        if together < fewest:
            best, fewest = distance, together
        if together == unavoidable:
            break
    return best
