"""Model FLOPs utilization: the share of what its devices can compute that a run uses for its model.

MFU: Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B. Only what the model needs is counted: a multiplication and
an addition are two operations, attention is counted for the whole square, and a backward pass takes twice its forward
pass. Recomputation and optimizers are not counted, so a technique that only keeps devices busy does not look fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import nn

from trainmaster.contract.config import TrainingConfig
from trainmaster.models.model_facts import Facts
from trainmaster.parallel.stages import partition

_H100 = {"fp8": 1979, "16": 989.5, "tf32": 494.7, "fp32": 67}
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    (r"GB200|GB300", {"fp8": 5000, "16": 2500, "tf32": 1250, "fp32": 80}),
    (r"B200|B300", {"fp8": 4500, "16": 2250, "tf32": 1125, "fp32": 75}),
    (r"H[12]00 NVL", {"fp8": 1671, "16": 835.5, "tf32": 418, "fp32": 60}),
    (r"GH200|H200", _H100),
    (r"H100 PCIe", {"fp8": 1513, "16": 756.5, "tf32": 378, "fp32": 51}),
    (r"H100", _H100),
    (r"H20\b", {"fp8": 296, "16": 148, "tf32": 74, "fp32": 44}),
    (r"A100|A800", {"16": 312, "tf32": 156, "fp32": 19.5}),
    (r"A30\b", {"16": 165, "tf32": 82, "fp32": 10.3}),
    (r"A10G", {"16": 70, "tf32": 35, "fp32": 31.2}),
    (r"A10\b", {"16": 125, "tf32": 62.5, "fp32": 31.2}),
    (r"L40S", {"fp8": 733, "16": 362, "tf32": 183, "fp32": 91.6}),
    (r"L4\b", {"fp8": 242.5, "16": 121, "tf32": 60, "fp32": 30.3}),
    (r"T4\b", {"16": 65, "fp32": 8.1}),
    (r"V100", {"16": 125, "fp32": 15.7}),
)
"""TFLOP/s of dense matrix products by part of a device's name, from NVIDIA's data sheets. The first that matches
counts. "16": fp16, and bf16 where there is one."""


def peak(device: str, precision: str, matmul_precision: str) -> float | None:
    """Return the highest FLOP/s of a device with this name in `precision` and `matmul_precision`, or None if
    unknown."""
    for pattern, peaks in _PEAKS:
        if re.search(pattern, device):
            kind = {"fp8": "fp8", "bf16": "16", "fp16": "16"}.get(precision, "fp32")
            if kind == "fp32" and matmul_precision != "Highest":
                kind = "tf32" if "tf32" in peaks else "fp32"
            return peaks[kind] * 1e12 if kind in peaks else None
    return None


def flops(model: nn.Module, facts: Facts) -> float | None:
    """Return the operations of a forward and a backward pass of one sequence, or one image, of a whole model.

    Return None for a user's own model, because only the model knows which inputs it takes.
    """
    if not facts.known:
        return None
    if facts.image:
        return 3 * partition.operations(model, "forward", torch.zeros(1, *facts.image, device="meta"))
    costs = partition.by_operations(model, facts.context)
    return 3 * (costs.stem + sum(costs.blocks) + costs.tail)


@dataclass(frozen=True)
class Utilization:
    """The utilization of the devices of a run, as rank 0 sees its own device.

    `step_flops` are the operations of a whole step per device. `peak` is the FLOP/s of a device, None if unknown.
    """

    device: torch.device
    step_flops: float
    peak: float | None

    @classmethod
    def of(
        cls, model: nn.Module, facts: Facts, config: TrainingConfig, world_size: int, device: torch.device
    ) -> Utilization | None:
        """Return the utilization of a run. Call it before the model is divided.

        Return None on a CPU, whose peak is not known and whose cores are shared with others, and for a user's own
        model.
        """
        if device.type != "cuda":
            return None
        each = flops(model, facts)
        if each is None:
            return None
        best = peak(torch.cuda.get_device_name(device), config.precision, config.matmulPrecision)
        return cls(device, each * config.batch.global_ / world_size, best)

    def numbers(self, seconds: float) -> dict[str, float]:
        """Return the TFLOP/s of a device and the MFU for metrics.jsonl, for a step of `seconds`."""
        reached = self.step_flops / seconds
        return {
            "tflops": round(reached / 1e12, 3),
            **({"mfu": round(reached / self.peak, 4)} if self.peak is not None else {}),
        }

    def words(self, seconds: float) -> str:
        """Return a sentence about the speed and the peak memory of a device, for steps of `seconds`."""
        numbers = self.numbers(seconds)
        used = torch.cuda.max_memory_allocated(self.device) / 2**30
        whole = torch.cuda.get_device_properties(self.device).total_memory / 2**30
        share = f" (MFU {numbers['mfu']:.1%})" if "mfu" in numbers else ""
        return f"{numbers['tflops']:,.1f} TFLOP/s a device{share}, at most {used:.1f} of its {whole:.1f} GiB"
