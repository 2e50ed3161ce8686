"""By what an agent and the operator recognise each other on a cluster: the token of the pod, and the certificates."""

from __future__ import annotations

from trainmaster.contract.wire import environment
from trainmaster_operator.manifests.ca_config_map import CA_KEY, CA_NAME
from trainmaster_operator.manifests.volumes import Mounted

IDENTITY_PATH = "/var/run/trainmaster"
AUDIENCE = "trainmaster"  # Of the token: only this operator accepts it.
TOKEN_SECONDS = 3600


def identity() -> Mounted:
    """Return the volume with a token that only our operator accepts, and the certificates by which the agent
    recognises the operator."""
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    bundle = {"name": CA_NAME, "items": [{"key": CA_KEY, "path": CA_KEY}], "optional": False}
    sources = [{"serviceAccountToken": token}, {"configMap": bundle}]
    return Mounted({"name": "trainmaster-identity", "projected": {"sources": sources}}, IDENTITY_PATH, read_only=True)


def identity_environment() -> dict[str, str]:
    """Return the variables that tell the agent where these files are."""
    return {
        environment.TOKEN_FILE: f"{IDENTITY_PATH}/token",
        environment.CA_FILE: f"{IDENTITY_PATH}/{CA_KEY}",
    }
