"""The fields of `training.loggers`: additional metric loggers. metrics.jsonl is always written."""

from __future__ import annotations

from pydantic import Field

from trainmaster.contract.config.config_model import Grown, Strict


class TensorBoardConfig(Strict):
    """Where event files for TensorBoard are written."""

    directory: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="The directory for event files. Default: the folder tensorboard in the output folder of the run.",
    )


class MlflowConfig(Strict):
    """Which MLflow server, experiment and run get the metrics."""

    trackingUri: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="The address of an MLflow server, or a folder. Default: the variable MLFLOW_TRACKING_URI, or the "
        "folder mlruns in the output folder of the run.",
    )
    experiment: str | None = Field(
        None,
        min_length=1,
        max_length=500,
        description="The name of the MLflow experiment. Default: the variable MLFLOW_EXPERIMENT_NAME, or the name of "
        "the job.",
    )
    run: str | None = Field(
        None, min_length=1, max_length=500, description="The name of the MLflow run. Default: the name of the job."
    )


class LoggersConfig(Grown):
    """Additional metric loggers for the numbers of steps and evaluations. Default: none."""

    since = frozenset({"mlflow"})

    tensorBoard: TensorBoardConfig | None = Field(
        None,
        description="Event files for TensorBoard. The image needs the package tensorboardX. Default: no event files.",
    )
    mlflow: MlflowConfig | None = Field(
        None,
        description="A run in MLflow. The image needs the package mlflow-skinny or mlflow. Default: no run in MLflow.",
    )
