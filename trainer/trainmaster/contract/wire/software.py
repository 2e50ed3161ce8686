"""What the ranks of one round must have in common: the program that they run, and the versions of what it runs on.

Software is told as names with values: {"config": "5f1c0a9be2d34477", "Python": "3.11.9", "torch": "2.13.0"}. Ranks
compare theirs through the store of their round, and agents tell the operator what is installed for their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.contract.wire import environment

CONFIG, COMMAND = "config", "command"
"""The program: of our own loop its config, of a script its command. The value is a hash."""
REVISION = "revision"
"""What the pod was made from: the image, variables and volumes of its run. The value is its name."""
TORCH, TRAINMASTER = "torch", "trainmaster"
FRAMEWORKS = (
    *("accelerate", "deepspeed", "horovod", "jax", "lightning", "pytorch_lightning", "tensorflow", "transformers"),
)
"""Packages whose versions are compared as well, where the script is known to import them."""


def program_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return which program a pod with these environment variables runs, and what the pod was made from; nothing if its
    operator did not tell."""
    told = {
        CONFIG if environment.CONFIG in variables else COMMAND: variables.get(environment.PROGRAM),
        REVISION: variables.get(environment.REVISION),
    }
    return {name: value for name, value in told.items() if value}


def difference(one: Mapping[str, str], one_pod: str, other: Mapping[str, str], other_pod: str) -> str:
    """Return a sentence that names both pods and what differs between them; "" if nothing does.

    What only one of the two tells is not compared: not every program lets us look into it.
    """
    names = [name for name in one if other.get(name, one[name]) != one[name]]
    if not names:
        return ""
    told = "; ".join(f"{name} {one[name]} in {one_pod}, {other[name]} in {other_pod}" for name in names)
    advice = "use the same image for all pods"
    if not {CONFIG, COMMAND, REVISION}.isdisjoint(names):
        advice = "suspend and resume a job after an edit, so that all its pods get the new version"
    return f"{told}: ranks that train together must have the same, so they do not start; {advice}"
