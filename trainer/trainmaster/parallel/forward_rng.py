"""Random numbers of forward passes, such as those of dropout.

No state has to be saved, and no two ranks that compute different tokens draw the same numbers. A job derives the seed
from its own seed, the step, and where in the batch the micro-batch begins. So a run that was killed draws the same
numbers as an undisturbed run, and so does a world of another size with micro-batches of the same size. Ranks that have
parts of the same sequence (cp) and stages of a pipeline have seeds of their own. Ranks of a tp group share a seed,
because a tensor that each of them has as a whole needs the same mask on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainmaster.host.seeds import seed_of
from trainmaster.parallel.mesh import Mesh


class ForwardRng:
    """Seeds torch's generators, on the host and on the device, before each forward pass that records gradients.

    `roots` are this rank's stages of a pipeline by their index, or the model as stage 0. Nothing is seeded before
    `begin` or `follow` is called.
    """

    def __init__(self, roots: Mapping[int, nn.Module], mesh: Mesh, device_type: str) -> None:
        self._mesh, self._on_device = mesh, device_type == "cuda"
        self._shared = mesh.data_ranks * mesh.degree("cp") * mesh.degree("pp") == 1  # by all ranks
        self._key: tuple[int, int, range] | None = None
        self._follows = False
        self._passes = dict.fromkeys(roots, 0)  # number of passes of each root in this step
        self._before: list[Tensor] = []  # states of the generators, while a pass has its own
        for stage, root in roots.items():
            root.register_forward_pre_hook(partial(self._enter, stage))
            root.register_forward_hook(self._leave, always_call=True)

    def begin(self, seed: int, step: int, slots: range) -> None:
        """Set the seed of the forward passes of a step. `slots` has the first sequence in the batch of each
        micro-batch."""
        self._key = seed, step, slots
        self._passes = dict.fromkeys(self._passes, 0)

    def follow(self) -> None:
        """Derive each seed from a number of torch's generator and this rank's place in the mesh, for a user's own loop.

        After a pass, the generators get back the state that they had when its seed was set. So ranks whose generators
        have the same state draw different masks, and a loop that saves the states of its generators, as `tm.steps`
        does, draws the same masks after a restart.
        """
        self._follows = True

    def _enter(self, stage: int, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return
        place = self._mesh.coordinate("cp"), stage
        if self._key is not None:
            seed, step, slots = self._key
            slot = slots[self._passes[stage]]
            self._passes[stage] += 1
            self._seed(seed_of("forward", seed, step, slot, *place))
        elif self._follows and not self._shared:
            given = _number()
            self._before = self._states()
            self._seed(seed_of("forward", given, self._mesh.data_rank, *place))

    def _leave(self, *_: Any) -> None:
        if self._before:
            (host, *device), self._before = self._before, []
            torch.set_rng_state(host)
            if device:
                torch.cuda.set_rng_state(device[0])

    def _states(self) -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self._on_device else [])]

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._on_device:
            torch.cuda.manual_seed(seed)


def seed_copies(devices: Sequence[torch.device]) -> None:
    """Let copies of a model on several GPUs of one process draw different random numbers in the next forward pass.

    `torch.manual_seed` gives all GPUs the same seed, and `tm.steps` saves the state of only one of them. The first copy
    uses the generator of its device as it is. Copies on the host draw one after the other.
    """
    others = [(index, device) for index, device in enumerate(devices) if index and device.type == "cuda"]
    if not others or not torch.cuda.is_initialized():
        return
    given = _number()
    for index, device in others:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed_of("copy", given, index))


def _number() -> int:
    """Return the next number of torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())
