"""What `make cuda` says of a device that fails."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cuda import child

ILLEGAL_ACCESS = """Traceback (most recent call last):
  File "loop.py", line 1, in step
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""


def test_the_last_words_of_an_error_of_cuda_are_those_that_name_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(ILLEGAL_ACCESS)
    said = child.last_words(log)
    assert said.endswith("ends with: torch.AcceleratorError: CUDA error: an illegal memory access was encountered")
