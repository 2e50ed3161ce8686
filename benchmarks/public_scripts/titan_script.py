"""torchtitan's smallest model, over gloo on CPU. It is made for torch's nightly build and a GPU for each rank."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.public_scripts import data
from benchmarks.public_scripts.scripts import Change, Lines, PublicScript

_UTILS, _METRICS = "torchtitan/tools/utils.py", "torchtitan/components/metrics.py"
_ATTENTION = "torchtitan/models/common/attention.py"
_FLEX = """            out, aux = FlexAttention._compiled_flex_attn(
                q,
                k,
                v,
                score_mod=score_mod,
                block_mask=block_mask,
                scale=scale,
                enable_gqa=enable_gqa,
                return_aux=return_aux,
                kernel_options=kernel_options,
            )
"""
_DENSE = """            zero, index = torch.zeros((), dtype=torch.long), torch.arange(q.shape[-2])
            mask = block_mask.mask_mod(zero, zero, index[:, None], index[None, :])
            attend = torch.nn.functional.scaled_dot_product_attention
            out, aux = attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None
"""
_CPU = "it takes a GPU for each rank"
_MEMORY = "it reads a GPU's memory"


def _texts(folder: Path) -> None:
    """The texts of its test data, which the snapshot lacks."""
    file = folder / "tests/assets/c4_test/data.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = data.sentences(6000)
    rows = [json.dumps({"text": ". ".join(lines[start : start + 6])}) for start in range(0, len(lines), 6)]
    file.write_text("\n".join(rows) + "\n")


SCRIPT = PublicScript(
    "torchtitan, debug model",
    "pytorch/torchtitan",
    "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a",
    folder=".",
    words=(
        *("-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_debugmodel", "--training.steps", "12"),
        *("--training.disable_cuda_graphs", "--training.num_tokens_per_microbatch_per_dp_rank", "256"),
        *("--training.max_context_length", "128", "--training.mixed_precision_param", "float32"),
        *("--debug.seed", "42", "--checkpoint.enable", "--checkpoint.interval", "4"),
    ),
    end=Lines(r"step: *\d+ +loss: *[\d.]+"),
    changes=(
        Change(_UTILS, '_get_available_device_type() or "cuda"', '_get_available_device_type() or "cpu"', _CPU),
        Change(_UTILS, "torch.device(device_type, device_index)", "torch.device(device_type)", _CPU),
        Change(
            "torchtitan/distributed/utils.py",
            "barrier(device_ids=[device_module.current_device()])",
            "barrier()",
            "gloo's barrier takes no devices",
        ),
        Change(
            "torchtitan/distributed/fsdp.py",
            "module.set_gradient_divide_factor(1.0)",
            "module.set_gradient_divide_factor(1.0)\n            module.set_force_sum_reduction_for_comms(True)",
            "gloo can't scale what it sums",
        ),
        Change(_ATTENTION, _FLEX, _DENSE, "its attention (FlexAttention) has no backward pass on CPU"),
        Change(_METRICS, "device_module.get_device_name(self.device)", '"CPU"', _MEMORY),
        Change(
            _METRICS,
            "device_module.get_device_properties(\n            self.device\n        ).total_memory",
            "1 << 34",
            _MEMORY,
        ),
        Change(_METRICS, "device_module.empty_cache()", "pass", _MEMORY),
        Change(_METRICS, "device_module.reset_peak_memory_stats()", "pass", _MEMORY),
        Change(_METRICS, "device_module.memory_stats(self.device)", "{}", _MEMORY),
    ),
    prepare=_texts,
    variables={"TORCH_COMPILE_DISABLE": "1"},
    kill_step=6,
    rate=r"tps: ([\d,.]+)",
    pace_s=3.0,
    limit_s=900,
)
