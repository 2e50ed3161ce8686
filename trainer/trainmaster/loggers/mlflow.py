"""A run in MLflow: one for all processes that go on with a training.

A run can be found again by its tag, which is written down before the run is made: whenever a process dies, the next one
finds either the run, or that there is none yet. What MLflow has logged it keeps, so steps that were run again have two
points there.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainmaster.contract.config import MlflowConfig
from trainmaster.contract.wire import environment
from trainmaster.errors import ConfigError
from trainmaster.host import atomic_write
from trainmaster.loggers.logger_queue import Feed, Point, Say

KEY_TAG = "trainmaster.run"
FILE = "mlflow.json"
_AT_ONCE = 100  # points of a batch: MLflow takes a thousand numbers
_PARAMS_AT_ONCE = 100
_MOST_PARAM = 500  # characters, that servers of all versions take
_PAUSES_S = (1.0, 60.0)  # the first and the longest while a server is away

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a training must not send data that no user has asked for
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder needs no database, and outlives any process that writes to it
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with a password that stands in it
    # We try again ourselves, and want to know soon that there is a reason to.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class Mlflow:
    """A run in MLflow. `kept` is a folder that the next process of this run has, too; None: the job's uid is used."""

    def __init__(
        self, config: MlflowConfig, output: Path | None, say: Say, kept: Path | None, params: Mapping[str, Any]
    ) -> None:
        """Raises ConfigError if there is no place to write, or no package to write with."""
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigError(
                "loggers.mlflow needs the package mlflow-skinny, or mlflow, in the image: pip install mlflow-skinny"
            )
        self._uri = config.trackingUri or os.environ.get("MLFLOW_TRACKING_URI") or _folder(output)
        job = os.environ.get(environment.JOB) or "trainmaster"
        self._experiment = config.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or job
        self._name = config.run or job
        self._say, self._kept, self._params = say, kept, params
        self._feed = Feed()
        self._client: Any = None
        self._run_id = ""
        self._finished = False
        self._said = False

    def begin(self, step: int) -> None:
        self._feed.start(self._run, "mlflow")

    def put(self, point: Point) -> None:
        if self._client is None:
            for name, value in _DEFAULTS.items():  # not in the thread: changing the environment isn't safe there
                os.environ.setdefault(name, value)
        self._feed.put(point)

    def close(self, timeout_s: float | None, finished: bool) -> None:
        self._finished = finished
        self._feed.close(timeout_s)

    def _run(self) -> None:
        # Only now that there is something to tell: importing the library takes seconds, for which no recovery waits.
        while points := self._feed.take(_AT_ONCE):
            self._persist(functools.partial(self._log, points))
        if self._finished and self._client is not None:
            self._persist(lambda: self._client.set_terminated(self._run_id, "FINISHED"))

    def _persist(self, act: Callable[[], object]) -> None:
        """Try until it works, or until nothing more comes; what the server refuses of a run is given up."""
        pause, longest = _PAUSES_S
        while True:
            last = self._feed.over
            try:
                if self._client is None:
                    self._connect()
                act()
            except Exception as error:  # noqa: BLE001 whatever a library raises, it's no reason to end a training
                self._tell(error)
                if last or (self._client is not None and _is_refusal(error)):
                    return
                self._feed.pause(pause)
                pause = min(2 * pause, longest)
            else:
                return

    def _tell(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            words = str(error).strip().partition("\n")[0][:300] or type(error).__name__
            said = f"MLflow at {self._uri}: {words}; training goes on, and MLflow is tried again"
            self._say("LoggerFailed", re.sub(r"//[^/@\s]*@", "//", said))  # a password may stand in an address

    def _log(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(at * 1000), step) for step, at, scalars in points for name, value in scalars.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics, synchronous=True)

    def _connect(self) -> None:
        """Find the run, or make it."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment is not None else self._make_experiment(client)
        key = self._key()
        found = client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        if found:
            run = found[0]
            if run.info.status != "RUNNING":
                client.update_run(run.info.run_id, status="RUNNING")
        else:
            run = client.create_run(experiment_id, tags={KEY_TAG: key}, run_name=self._name)
        if not run.data.params:
            self._log_params(client, run.info.run_id)
        self._run_id, self._client = run.info.run_id, client

    def _make_experiment(self, client: Any) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(client.create_experiment(self._experiment))
        except MlflowException:
            experiment = client.get_experiment_by_name(self._experiment)  # another job's rank was quicker
            if experiment is None:
                raise
            return str(experiment.experiment_id)

    def _log_params(self, client: Any, run_id: str) -> None:
        from mlflow.entities import Param

        params = [Param(name, value) for name, value in flattened(self._params)]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(run_id, params=params[start : start + _PARAMS_AT_ONCE], synchronous=True)

    def _key(self) -> str:
        if self._kept is None:
            return os.environ.get(environment.JOB_UID) or uuid.uuid4().hex
        path = self._kept / FILE
        try:
            return str(json.loads(path.read_bytes())["run"])
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or it cannot be read
            key = uuid.uuid4().hex
        atomic_write.write(path, json.dumps({"run": key}) + "\n")
        return key


def flattened(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value as text) of a config's fields, in the form that MLflow accepts."""
    for name, value in values.items():
        path = re.sub(r"[^\w\-. :/]", "_", f"{within}{name}")[:250]
        if isinstance(value, Mapping):
            yield from flattened(value, f"{within}{name}.")
        elif value is not None:
            yield path, (value if isinstance(value, str) else json.dumps(value))[:_MOST_PARAM]


def _folder(output: Path | None) -> str:
    if output is None:
        raise ConfigError(
            "loggers.mlflow: this run has no output folder to write to; loggers.mlflow.trackingUri, or "
            "MLFLOW_TRACKING_URI in the environment, would name a server"
        )
    return (output.absolute() / "mlruns").as_uri()


def _is_refusal(error: Exception) -> bool:
    """Return True if a server has understood the request, and would give the same answer again."""
    status = getattr(error, "get_http_status_code", None)
    return callable(status) and status() in (400, 404, 409, 413)
