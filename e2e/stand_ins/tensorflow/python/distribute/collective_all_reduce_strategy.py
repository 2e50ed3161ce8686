import json
import os

from mesh import Mesh


class CollectiveAllReduceStrategy:
    """The strategy of several workers, which finds the others in TF_CONFIG."""

    def __init__(self) -> None:
        config = json.loads(os.environ["TF_CONFIG"])
        workers = [address.rpartition(":") for address in config["cluster"]["worker"]]
        self._mesh = Mesh(config["task"]["index"], [(host, int(port)) for host, _, port in workers])

    def sum(self, value: float) -> float:
        return self._mesh.sum(value)
