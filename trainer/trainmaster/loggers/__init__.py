"""Additional loggers of a run's metrics, for TensorBoard and MLflow."""

from trainmaster.loggers.run_loggers import Loggers

__all__ = ["Loggers"]
