"""Environment variables that a script may set without harm to an import, by the beginnings of their names."""

from __future__ import annotations

READ_LATER = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG"),
    *("NCCL_", "GLOO_", "MASTER_ADDR", "MASTER_PORT", "TOKENIZERS_PARALLELISM", "ACCELERATE_"),
    *("PYTORCH_NVML_BASED_CUDA_CHECK", "USE_LIBUV"),  # which `import lightning` sets before it imports torch
    *("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME", "WANDB_RUN_", "WANDB_DIR", "WANDB_MODE", "WANDB_API_KEY"),
)
"""Prefixes of variables that libraries read when they are used, and not when they are imported."""

NOT_BY_TORCH = (
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DATASETS_", "DIFFUSERS_", "DEEPSPEED_"),
    *("WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "RAY_", "TF_", "KERAS_", "JAX_", "XLA_"),
)
"""Prefixes of variables that neither torch nor numpy reads when it is imported."""
