"""Whether the pods of a job can share a PersistentVolumeClaim for their checkpoints, as its access modes say."""

from __future__ import annotations

from trainmaster_operator.manifests.keyed_lists import Object

WRITABLE_BY_MANY = "ReadWriteMany"
WRITABLE_BY_ONE_NODE = "ReadWriteOnce"


def claim_problem(claim: Object, pods: int) -> str:
    """Return why this number of pods cannot share the PersistentVolumeClaim for their checkpoints; "" if they can,
    perhaps only all on one node."""
    name, modes = claim["metadata"]["name"], _modes(claim)
    if WRITABLE_BY_MANY in modes or WRITABLE_BY_ONE_NODE in modes:
        return ""
    if not any(mode.startswith("ReadWrite") for mode in modes):
        return (
            f"checkpoint.volume: claim {name} cannot be written to ({', '.join(modes)}): a claim with the access mode "
            "ReadWriteMany is needed, or ReadWriteOnce if all pods fit on one node"
        )
    if pods == 1:
        return ""
    return (
        f"checkpoint.volume: claim {name} is {', '.join(modes)}, for one pod only, and the job has {pods} pods: use a "
        "ReadWriteMany claim, a ReadWriteOnce claim if all pods fit on one node, or one pod with more ranks"
    )


def serves_one_node(claim: Object) -> bool:
    """Return whether all pods that mount this PersistentVolumeClaim must be on one node."""
    modes = _modes(claim)
    return WRITABLE_BY_ONE_NODE in modes and WRITABLE_BY_MANY not in modes


def _modes(claim: Object) -> list[str]:
    asked, given = claim.get("spec") or {}, claim.get("status") or {}
    found: list[str] = given.get("accessModes") or asked.get("accessModes") or []
    return found
