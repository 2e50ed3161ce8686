"""What one block of a model keeps and sends on a rank, without its memory.

Tensors are on torch's device meta: they have shapes, but no values. Process groups are fake: their collectives do
nothing. So a block runs forward and backward as on a rank of any mesh, with the code of the strategies, and what
autograd keeps and what is sent is recorded.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainmaster import models, parallel
from trainmaster.contract.config import ContextConfig, TensorConfig
from trainmaster.models.experts import combined
from trainmaster.models.layers import AuxiliaryLoss
from trainmaster.parallel import context_parallel, expert_parallel, tensor_parallel
from trainmaster.parallel.blocks import float8, recompute
from trainmaster.parallel.blocks.precision import DTYPES
from trainmaster.parallel.mesh import Mesh
from trainmaster.parallel.model_plan import named, plan_of

_ATTENTION = F.scaled_dot_product_attention


@dataclass(frozen=True)
class Slice:
    """A rank's part of a model, apart from stages and shards, and the dtype that it computes in."""

    tp: int
    cp: int
    ep: int
    tensor: TensorConfig
    context: ContextConfig
    precision: str
    recompute: str

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def degrees(self) -> dict[str, int]:
        """Return the degrees of the smallest mesh that has these axes."""
        shards = self.ep // math.gcd(self.ep, self.cp)
        return {"dpShard": shards, "cp": self.cp, "tp": self.tp, "ep": self.ep}


@dataclass(frozen=True)
class Use:
    """What a part of a model uses for one sequence."""

    saved: int  # bytes that autograd keeps from the forward to the backward pass
    result: int  # bytes that go on to the next part
    sent: dict[str, float] = field(default_factory=dict)  # bytes by axis, forward and backward
    output: int = 0  # bytes that come out of it: what a pipeline's stage keeps of its last part
    again: int = 0  # bytes more while it is computed again in the backward pass, one block at a time
    operations: int = 0  # calls of torch, forward and backward
    collectives: int = 0  # that are called for `sent`


@dataclass(frozen=True)
class Uses:
    stem: Use
    block: Use
    tail: Use  # with the loss
    chain: int = 0  # bytes that a stage keeps of all its blocks together

    def of_stage(self, blocks: range, layers: int) -> list[Use]:
        """Return the uses of the parts of a stage with these blocks of the model."""
        stem = [self.stem] if blocks.start == 0 else []
        tail = [self.tail] if blocks.stop == layers else []
        chain = [Use(self.chain, 0)] if self.chain and blocks else []
        return [*stem, *chain, *[self.block] * len(blocks), *tail]


def trace(options: Any, part: Slice, time: int) -> Uses:
    with _fake_world(part.degrees) as mesh:
        with _OnMeta():
            model = _model(options, DTYPES[part.precision])
        if part.ep > 1:
            expert_parallel.apply(model, mesh.experts())
        vocabulary = None
        if part.tp > 1:
            tensor_parallel.apply(model, mesh["tp"], part.tensor)
            vocabulary = mesh.group("tp") if part.tensor.vocabulary else None
        if part.cp > 1:
            context_parallel.apply(model, mesh.group("cp"), part.context)
        for _, module in named(model, plan_of(model).experts):
            tensor_parallel.rebase(
                module, _evenly(mesh.experts().get_group("ep") if part.ep > 1 else None), tensor_parallel.local
            )
        for module in model.modules():
            if isinstance(module, AuxiliaryLoss):
                module.scale = 1.0
        if part.precision == "fp8":
            float8.apply(model.get_submodule(plan_of(model).blocks).children(), "cpu")
        with _OnMeta():
            return _run(model, time // part.cp, vocabulary, _Record(mesh, model), part.recompute)


def _model(options: Any, dtype: torch.dtype) -> nn.Module:
    """Return the model in the dtype that its blocks compute in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return models.module(options)
    finally:
        torch.set_default_dtype(before)


def _run(model: Any, time: int, vocabulary: dist.ProcessGroup | None, record: _Record, recomputed: str) -> Uses:
    tokens = torch.zeros(1, time, dtype=torch.int64)

    x, stem = record.of(lambda: model.embed(tokens), ())
    shared, _ = record.of(lambda: model.shared(torch.arange(time), x), ())
    record.ignore(shared)  # the same for all blocks
    blocks = model.get_submodule(plan_of(model).blocks)
    y, block = record.of(lambda: blocks[0](x, *shared), (x,))
    chain = 0
    if recomputed == "Reversible":
        streams = [s.detach().requires_grad_() for s in x.chunk(2, -1)]
        _, first = record.of(lambda: blocks[0].first(streams[1], *shared), (streams[1],))
        _, second = record.of(lambda: blocks[0].second(streams[0]), (streams[0],))
        recompute.apply([blocks[0]], recomputed)
        _, less = record.of(lambda: blocks[0](x, *shared), (x,))
        chain = block.result
        # One half at a time; beside it the input that is put together, and gradients.
        block = replace(less, saved=0, again=max(first.saved, second.saved) + 2 * block.result)
    elif recomputed != "None":
        recompute.apply([blocks[0]], recomputed)
        _, less = record.of(lambda: blocks[0](x, *shared), (x,))
        kept = x.untyped_storage().nbytes() + (record.products if recomputed == "Selective" else 0)
        # While a block is computed again its gradients come and go beside what that takes.
        block = replace(less, saved=kept, again=block.saved - kept + 2 * block.result)

    logits: list[Tensor] = []

    def ends() -> Tensor:
        logits.append(model.unembed(y))
        return parallel.cross_entropy(logits[0], tokens, vocabulary)

    _, tail = record.of(ends, (y,))
    tail = replace(tail, output=logits[0].untyped_storage().nbytes())
    rotations = sum(t.untyped_storage().nbytes() for t in torch.utils._pytree.tree_leaves(shared))
    return Uses(replace(stem, saved=stem.saved + rotations), block, tail, chain)


class _OnMeta(DeviceContext):  # type: ignore[misc]
    """A context in which new tensors are on the device meta, and attention is computed as on a CPU.

    torch chooses the kernel of attention by the device of its inputs, and for the device meta it takes one that keeps
    the scores of all pairs of tokens. FakeTensorMode, whose tensors say that they are on a CPU, has the same results,
    but takes several times as long.
    """

    def __init__(self) -> None:
        super().__init__("meta")

    def __enter__(self) -> _OnMeta:
        super().__enter__()
        # Not by __torch_function__: torch leaves such a context where some blocks are computed again.
        F.scaled_dot_product_attention = _attention_on_cpu  # type: ignore[assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        F.scaled_dot_product_attention = _ATTENTION
        super().__exit__(*error)


def _attention_on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **rest: Any,
) -> Tensor:
    """Call for tensors without memory what scaled_dot_product_attention calls for tensors of a CPU."""
    with _disable_current_modes():  # what is only asked isn't recorded
        q_, k_, v_, mask_ = (None if x is None else _in_memory(x) for x in (q, k, v, attn_mask))
        chosen = torch._fused_sdp_choice(q_, k_, v_, mask_, dropout_p, is_causal, **rest)
    if chosen != SDPBackend.FLASH_ATTENTION.value:
        attention: Tensor = _ATTENTION(q, k, v, attn_mask, dropout_p, is_causal, **rest)
        return attention
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zero, low = (torch.scalar_tensor(x, dtype=q.dtype, device=q.device) for x in (0.0, -math.inf))
        attn_mask = torch.where(attn_mask, zero, low)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=rest.get("scale"))[0]


def _in_memory(x: Tensor) -> Tensor:
    """Return a tensor on the CPU of the same shape, dtype and step of its last dim, which has one row of memory."""
    step = x.stride(-1)
    row = torch.empty((x.shape[-1] - 1) * step + 1, dtype=x.dtype, device="cpu")
    return row.as_strided(x.shape, [0] * (x.dim() - 1) + [step])


class _Record(TorchDispatchMode):  # type: ignore[misc]
    """Records what autograd saves, and what collectives send, for the operations that run in it."""

    def __init__(self, mesh: Mesh, model: nn.Module) -> None:
        super().__init__()
        self._axes: dict[str, str] = {}
        for axis in ("tp", "cp"):
            if mesh.degree(axis) > 1:
                self._axes[mesh.group(axis).group_name] = axis
        if mesh.experts_over > 1:
            self._axes[mesh.experts().get_group("ep").group_name] = "ep"
        self._held = {_key(tensor_parallel.local(p.data)) for p in model.parameters()}
        self._kept: list[Any] = []  # so that no key is used twice
        self._saved: dict[int, int] = {}
        self._sent: dict[str, float] = {}
        self._operations = self._collectives = 0
        self._forward = False
        self.products = 0  # bytes of what selective recomputation keeps of the last forward pass

    def ignore(self, shared: Any) -> None:
        """Ignore tensors that are counted elsewhere."""
        for x in torch.utils._pytree.tree_leaves(shared):
            self._kept.append(x.untyped_storage())
            self._held.add(_key(x))

    def keep(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self._kept.append(storage)
        if _key(x) not in self._held:
            self._saved[_key(x)] = storage.nbytes()
        return x

    def of(self, forward: Callable[[], Any], inputs: tuple[Tensor, ...]) -> tuple[Any, Use]:
        """Return (what `forward` returns, detached from it; its use of memory and links, with the backward pass)."""
        self._saved, self._sent, self.products = {}, {}, 0
        self._operations = self._collectives = 0
        hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda x: x)
        with self, hooks, warnings.catch_warnings():
            # That what selective recomputation keeps goes past such hooks: it is counted by `products`.
            warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)
            self._forward = True
            result = forward()
            self._forward = False
            saved = sum(self._saved.values())
            if not isinstance(result, Tensor):
                return result, Use(saved, 0, operations=self._operations)
            # Tensor.backward would leave _OnMeta, and a block that is computed again makes new tensors.
            torch.autograd.backward(result.float().sum(), inputs=[*inputs] or None)
        result = result.detach().requires_grad_()
        size = result.untyped_storage().nbytes()
        calls = {"operations": self._operations, "collectives": self._collectives}
        return result, Use(saved, size, dict(self._sent), size, **calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._operations += 1
        if func.namespace == "c10d":
            self._collectives += 1
            self._note(func.name(), args)
        result = func(*args, **(kwargs or {}))
        if self._forward and func in recompute.KEPT:
            self.products += sum(t.untyped_storage().nbytes() for t in torch.utils._pytree.tree_leaves(result))
        return result

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        """Add the bytes that a rank sends in a ring of n (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
        2009)."""
        leaves = [leaf for arg in args for leaf in (arg if isinstance(arg, list) else [arg])]
        group = next(dist.ProcessGroup.unbox(leaf) for leaf in leaves if isinstance(leaf, torch.ScriptObject))
        largest = max(x.numel() * x.element_size() for x in leaves if isinstance(x, Tensor))
        n, axis = group.size(), self._axes[group.group_name]
        times = 2 if "allreduce" in name else 1
        self._sent[axis] = self._sent.get(axis, 0.0) + times * (n - 1) / n * largest


def _key(x: Tensor) -> int:
    key: int = x.untyped_storage()._cdata
    return key


def _evenly(group: dist.ProcessGroup | None) -> Callable[..., Tensor]:
    """Return a forward of experts that are all chosen equally often: tensors without values do not say which are
    chosen."""

    def forward(module: Any, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        order = choices.flatten().argsort(stable=True)
        rows = x[order // choices.shape[1]]
        n = 1 if group is None else group.size()
        sizes = _even(len(rows), n)
        if group is not None:
            rows = expert_parallel._Travelled.apply(rows, sizes, sizes, group)[order]
        y = module.compute(rows, _even(len(rows), module.gate.shape[0]))
        if group is not None:
            y = expert_parallel._Travelled.apply(torch.empty_like(y).index_copy(0, order, y), sizes, sizes, group)
        return combined(y, order, weights)

    return forward


def _even(rows: int, parts: int) -> list[int]:
    return [rows // parts + (i < rows % parts) for i in range(parts)]


@contextmanager
def _fake_world(degrees: dict[str, int]) -> Iterator[Mesh]:
    """A context with a process group whose collectives do nothing.

    It is seen from its last rank, which attends to the most tokens.
    """
    size = math.prod(degrees[axis] for axis in ("dpShard", "cp", "tp"))
    hook = sys.excepthook  # each group puts its rank before every line of a traceback, for good
    dist.init_process_group("fake", store=FakeStore(), rank=size - 1, world_size=size)
    try:
        yield Mesh(degrees, "cpu")
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
