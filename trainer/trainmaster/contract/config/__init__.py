"""The training config, which every rank gets as JSON: the fields of `spec.training` of a job and of `spec.checkpoint`.

Both sides validate with these models: the operator before it creates anything, the trainer before ranks start. Options
of a model or of a data source are open maps, which the code of the image checks, so that a new model needs no new CRD.
There is no field that no code obeys: such a field is refused as unknown.
"""

from __future__ import annotations

from trainmaster.contract.config.batch_config import BatchConfig, BatchScaling, NoiseScaleConfig
from trainmaster.contract.config.checkpoint_config import CheckpointConfig
from trainmaster.contract.config.communication_config import (
    BUCKET_MIB,
    CommunicationConfig,
    CompressionConfig,
    OuterConfig,
)
from trainmaster.contract.config.config_model import (
    RANKS,
    STEPS,
    Decay,
    Device,
    Grown,
    Name,
    Precision,
    Recompute,
    Strict,
)
from trainmaster.contract.config.divergence_config import DivergenceConfig
from trainmaster.contract.config.divisors_and_multiples import divisors, multiples_near_words
from trainmaster.contract.config.evaluation_config import EarlyStopConfig, EvaluationConfig
from trainmaster.contract.config.loggers_config import LoggersConfig, MlflowConfig, TensorBoardConfig
from trainmaster.contract.config.micro_batches import pod_counts_that_may_share, share_of_each_rank
from trainmaster.contract.config.model_and_data_config import DataConfig, ModelConfig
from trainmaster.contract.config.optimizer_config import OptimizerConfig
from trainmaster.contract.config.parallelism_config import (
    AXES,
    ContextConfig,
    ParallelismConfig,
    PipelineConfig,
    ShardingConfig,
    TensorConfig,
)
from trainmaster.contract.config.profile_config import ProfileConfig
from trainmaster.contract.config.refused_combinations import best_refusal, compile_refusal, precision_refusal
from trainmaster.contract.config.training_config import TrainingConfig, TrainingSpec

__all__ = [
    "AXES",
    "BUCKET_MIB",
    "RANKS",
    "STEPS",
    "BatchConfig",
    "BatchScaling",
    "CheckpointConfig",
    "CommunicationConfig",
    "CompressionConfig",
    "ContextConfig",
    "DataConfig",
    "Decay",
    "Device",
    "DivergenceConfig",
    "EarlyStopConfig",
    "EvaluationConfig",
    "Grown",
    "LoggersConfig",
    "MlflowConfig",
    "ModelConfig",
    "Name",
    "NoiseScaleConfig",
    "OptimizerConfig",
    "OuterConfig",
    "ParallelismConfig",
    "PipelineConfig",
    "Precision",
    "ProfileConfig",
    "Recompute",
    "ShardingConfig",
    "Strict",
    "TensorBoardConfig",
    "TensorConfig",
    "TrainingConfig",
    "TrainingSpec",
    "best_refusal",
    "compile_refusal",
    "divisors",
    "multiples_near_words",
    "pod_counts_that_may_share",
    "precision_refusal",
    "share_of_each_rank",
]
