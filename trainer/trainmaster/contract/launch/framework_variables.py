"""The variables that Trainmaster sets for the ranks of each framework, and that a job therefore must not set."""

from __future__ import annotations

from collections.abc import Iterable

SET_BY_US: dict[str, tuple[str, ...]] = {
    "TensorFlow": ("TF_CONFIG",),
    "JAX": ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"),
    "Horovod": (
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_CONTROLLER", "HOROVOD_HOSTNAME"),
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
    ),
    "XGBoost": ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT"),
}
"""The variables that Trainmaster sets, by framework. The addresses of ranks change with every restart, so no fixed
value can be right."""


def refusal(framework: str, given: Iterable[str]) -> str:
    """Return what is wrong with the variables that a job sets, by their names; "" if nothing is."""
    both = sorted(set(SET_BY_US.get(framework, ())) & set(given))
    if not both:
        return ""
    return (
        f"{' and '.join(both)} must not be set for framework {framework}: Trainmaster sets it for each rank, with "
        f"addresses that change at every restart; leave it out"
    )
