"""Who keeps copies of whose memory: a rule of one number, so that it stays small at any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import eq

from trainmaster_operator.planning.facts.view import View

MOST_TRIED = 64


def shift(view: View, order: Sequence[int]) -> int:
    """Copies of the k-th slot of the round go to the slot so many places further, around; 0: nowhere.

    A peer on the same node is lost with it. Slots of one node often lie side by side, so the distance is looked for
    among the small ones; where none separates all pairs, the one that separates most is taken.
    """
    ram = view.spec.ram
    if ram is None or ram.every == 0 or not ram.peers or len(order) < 2:
        return 0
    nodes = [pod.node if (pod := view.pods[slot]) is not None else "" for slot in order]
    # Slots of a node that holds more than half of them can't all have a partner on another one.
    unavoidable = max(0, 2 * max(Counter(nodes).values()) - len(nodes))
    best, fewest = 1, len(order) + 1
    for distance in range(1, min(len(order), MOST_TRIED + 1)):
        together = sum(map(eq, nodes, nodes[distance:] + nodes[:distance]))
        if together < fewest:
            best, fewest = distance, together
        if together == unavoidable:
            break
    return best
