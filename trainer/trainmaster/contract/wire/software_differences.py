"""The software that the ranks of one round must have in common: the program, and the versions of its libraries.

Software is described by names with values: {"config": "5f1c0a9be2d34477", "Python": "3.11.9", "torch": "2.13.0"}. Ranks
compare theirs through the store of their round, and agents report to the operator what is installed for their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.contract.wire import environment

CONFIG, COMMAND = "config", "command"
"""The program: the config of our own loop, or the command of a script. The value is a hash."""
REVISION = "revision"
"""What the pod was made from: the image, variables and volumes of its run. The value is its name."""
TORCH, TRAINMASTER = "torch", "trainmaster"
FRAMEWORKS = (
    *("accelerate", "deepspeed", "horovod", "jax", "lightning", "pytorch_lightning", "tensorflow", "tf_keras"),
    *("transformers", "xgboost"),
)
"""Packages whose versions are compared, too, if the script is known to import them."""


def program_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the program that a pod with these environment variables runs, and what the pod was made from.

    The result is empty if the operator that made the pod did not set them.
    """
    told = {
        CONFIG if environment.CONFIG in variables else COMMAND: variables.get(environment.PROGRAM),
        REVISION: variables.get(environment.REVISION),
    }
    return {name: value for name, value in told.items() if value}


def difference(one: Mapping[str, str], one_pod: str, other: Mapping[str, str], other_pod: str) -> str:
    """Return a sentence that names both pods and the software in which they differ, or "" if they do not differ.

    A name that only one of the two has is not compared, because not every program can be inspected.
    """
    names = [name for name in one if other.get(name, one[name]) != one[name]]
    if not names:
        return ""
    told = "; ".join(f"{name} {one[name]} in {one_pod}, {other[name]} in {other_pod}" for name in names)
    advice = "use the same image for all pods"
    if not {CONFIG, COMMAND, REVISION}.isdisjoint(names):
        advice = "suspend and resume a job after an edit, so that all its pods get the new version"
    return f"{told}: ranks that train together must have the same, so they do not start; {advice}"
