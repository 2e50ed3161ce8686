#!/bin/bash
# A launcher in a shell script.
set -euo pipefail
export OMP_NUM_THREADS=1
torchrun --standalone --nproc-per-node=1 "$@"
