"""Replicas of plain parameters, whose gradients are summed in buckets during the backward pass.

DistributedDataParallel is not used, because it rebuilds its buckets after the first backward pass. So a restarted run
would reduce in another order than the uninterrupted one, and would differ in the last bits at three ranks or more.
`replicate` is not used where it has nothing to cast, because its hooks around each block, made for sharded parameters,
cost a small model more time than the sum. Here, buckets are made once, from the parameters alone, and they are reduced
in the same order in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

PIECE = 1 << 14  # elements: large enough to be fast, small enough that their squares are summed in fp32 without harm


class Bucket:
    """Parameters whose gradients are summed together, and the memory of these gradients.

    After the gradients there is a 1 for each parameter, or a 0 if this rank's backward pass has not reached it. A sum
    of 0 means that no rank has a gradient, so the parameter is left without one.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        sizes = [p.numel() for p in self.parameters]
        self._memory = self.parameters[0].new_zeros(sum(sizes) + len(sizes))
        whole, self._present = self._memory.split([sum(sizes), len(sizes)])
        self.pieces, parts = whole.split(PIECE), whole.split(sizes)
        self._sums = [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]
        self._before: list[Tensor | None] = [None] * len(sizes)  # sums of earlier steps that were not dropped
        self._work: Any = None
        self._partial = False
        self.missing = len(sizes)  # gradients that the backward pass under way has not come by yet

    def set_aside(self) -> None:
        """Set sums of an earlier step aside. The next sums are added to them, but must not contain them."""
        for index, (parameter, total) in enumerate(zip(self.parameters, self._sums, strict=True)):
            if parameter.grad is total:
                self._before[index], parameter.grad = total.clone(), None

    def hold(self, index: int) -> bool:
        """Move this parameter's gradient here, so that later micro-batches add to it. Return True if there is one."""
        gradient = self.parameters[index].grad
        if gradient is not None and gradient is not self._sums[index]:
            self.parameters[index].grad = self._sums[index].copy_(gradient)
        return gradient is not None

    def holds_all(self) -> bool:
        """Return True if all gradients lie in this bucket."""
        return all(p.grad is total for p, total in zip(self.parameters, self._sums, strict=True))

    def begin(self, group: dist.ProcessGroup) -> None:
        """Start to sum the gradients over the ranks of the group."""
        absent = [index for index in range(len(self.parameters)) if not self.hold(index)]
        self._partial = bool(absent)
        self._present.fill_(1.0)
        for index in absent:
            self._sums[index].zero_()
            self._present[index] = 0.0
        self._work = dist.all_reduce(self._memory, group=group, async_op=True)

    def finish(self) -> None:
        """Wait for the sums, and make them the gradients of the parameters."""
        self._work.wait()
        self._work, self.missing = None, len(self.parameters)
        # Only a rank that lacks a gradient has to look whether other ranks have it.
        present = self._present.tolist() if self._partial else [1.0] * len(self.parameters)
        for index, parameter in enumerate(self.parameters):
            before, self._before[index] = self._before[index], None
            parameter.grad = self._sums[index] if present[index] else None
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad.add_(before)


class Replicas:
    """Sums the gradients of a model over the ranks of a group in each backward pass. The model is the same on all
    ranks.

    `on` says whether the next backward pass sums. Only the last micro-batch of a step has to; in a pipeline, which has
    many passes, `finish` sums after them.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, size: int) -> None:
        """`size` is the size of a bucket in bytes, as far as the sizes of tensors allow."""
        self.on = True
        self._group = group
        # The backward pass reaches the last parameters first.
        trained = [p for p in model.parameters() if p.requires_grad]
        self._buckets = [Bucket(part) for part in parts(trained[::-1], size)]
        self._begun = 0  # buckets whose sums are under way
        self._ends = False  # the backward pass under way will call `finish`
        self._summed = False  # whatever gradients there are
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(
                    lambda _, bucket=bucket, index=index: self._arrived(bucket, index)
                )
        model.register_forward_pre_hook(lambda *_: self.prepare())
        model.register_forward_hook(lambda model, inputs, output: self._watch(output))

    def gradients(self) -> list[Tensor] | None:
        """Return all gradients as pieces of the buckets' memory, or None if a gradient is missing or lies elsewhere."""
        if not all(bucket.holds_all() for bucket in self._buckets):
            return None
        return [piece for bucket in self._buckets for piece in bucket.pieces]

    def prepare(self) -> None:
        """Set earlier sums aside. It is called before the first forward pass of a step."""
        if self._summed:
            self._summed = False
            for bucket in self._buckets:
                bucket.set_aside()

    def finish(self) -> None:
        """Sum the gradients that are not summed yet, and wait. All gradients of this rank must be complete."""
        for bucket in self._buckets[self._begun :]:
            bucket.begin(self._group)
        for bucket in self._buckets:
            bucket.finish()
        self._begun, self._ends, self._summed = 0, False, True

    def _watch(self, output: Any) -> None:
        """Note when the backward pass begins, to call `finish` at its end: passes within it have ends of their own."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._backward_begins())
                return

    def _backward_begins(self) -> None:
        if self.on and not self._ends:
            self._ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _arrived(self, bucket: Bucket, index: int) -> None:
        # At once, while the gradient is in the processor's cache; then its own memory is free for the next one.
        bucket.hold(index)
        if not self._ends:
            return
        bucket.missing -= 1
        # In the same order on all ranks, whichever is complete first.
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._buckets[self._begun].begin(self._group)
            self._begun += 1


def parts(parameters: Sequence[nn.Parameter], bucket: int) -> list[list[nn.Parameter]]:
    """Divide parameters into runs that fill a bucket of `bucket` bytes, with one dtype and device in each run."""
    found: list[list[nn.Parameter]] = []
    kind, room = None, 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if kind != (parameter.dtype, parameter.device) or room < size:
            found.append([])
            kind, room = (parameter.dtype, parameter.device), bucket
        found[-1].append(parameter)
        room -= size
    return found
