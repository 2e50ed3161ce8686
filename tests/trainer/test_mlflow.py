"""MLflow: one run for all processes of a training, whatever happens to them or to the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks, fault_socket
from tests.trainer.test_loggers import scalars
from trainmaster.contract.config import LoggersConfig, TrainingConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.errors import ConfigError
from trainmaster.loggers import Loggers, mlflow
from trainmaster.rank.injected_faults import Fault, encode

ASKED = LoggersConfig.model_validate({"mlflow": {}})
WAIT_S = 60.0


def config(**fields: str) -> LoggersConfig:
    return LoggersConfig.model_validate({"mlflow": fields})


def numbers(step: int, loss: float = 1.0) -> dict[str, Any]:
    return {"step": step, "loss": loss, "tokens": 10, "seconds": 0.5}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mlflow._DEFAULTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", environment.JOB):
        monkeypatch.delenv(name, raising=False)


class Stored:
    """What lies in a folder of MLflow."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=folder.as_uri())

    @property
    def runs(self) -> list[Any]:
        experiments = self.client.search_experiments()
        return self.client.search_runs([e.experiment_id for e in experiments])

    @property
    def run(self) -> Any:
        (run,) = self.runs
        return run

    def curve(self, name: str) -> list[tuple[int, float]]:
        """As it was logged."""
        history = self.client.get_metric_history(self.run.info.run_id, name)
        return [(m.step, m.value) for m in sorted(history, key=lambda m: (m.timestamp, m.step))]


def test_numbers_and_the_config_are_one_run_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.JOB, "my-gpt")
    params = {"model": {"name": "gpt", "options": {"layers": 2, "a!": [1, 2]}}, "seed": 0, "profile": None}
    loggers = Loggers(ASKED, tmp_path, params=params)
    loggers.begin(0)
    loggers.step(numbers(1, 2.0))
    loggers.step(numbers(2, 1.5))
    loggers.evaluation(2, 1.75)
    loggers.close(finished=True)
    stored = Stored(tmp_path / "mlruns")
    assert stored.curve("train/loss") == [(1, 2.0), (2, 1.5)]
    assert stored.curve("train/tokens_per_second") == [(1, 20.0), (2, 20.0)]
    assert stored.curve("evaluation/loss") == [(2, 1.75)]
    run = stored.run
    assert run.data.params == {
        "model.name": "gpt",
        "model.options.layers": "2",
        "model.options.a_": "[1, 2]",
        "seed": "0",
    }
    assert (run.info.run_name, run.info.status) == ("my-gpt", "FINISHED")
    assert stored.client.get_experiment(run.info.experiment_id).name == "my-gpt"


def test_names_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the environment")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "there").as_uri())
    for asked in ({}, {"experiment": "mine", "run": "first"}):
        loggers = Loggers(config(**asked), None, kept=tmp_path / str(len(asked)))
        loggers.begin(0)
        loggers.step(numbers(1))
        loggers.close()
    stored = Stored(tmp_path / "there")
    names = {(stored.client.get_experiment(r.info.experiment_id).name, r.info.run_name) for r in stored.runs}
    assert names == {("of the environment", "trainmaster"), ("mine", "first")}


def test_a_process_that_goes_on_finds_its_run_also_if_it_was_over(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        loggers = Loggers(ASKED, tmp_path / "out", kept=tmp_path / "checkpoints", params={"steps": step})
        loggers.begin(step - 1)
        loggers.step(numbers(step, float(step)))
        loggers.close(finished=step == 2)
    stored = Stored(tmp_path / "out" / "mlruns")
    assert stored.curve("train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert stored.run.info.status == "RUNNING"
    assert stored.run.data.params == {"steps": "1"}


def test_a_process_that_dies_before_its_run_is_made_leaves_no_second_one(tmp_path: Path) -> None:
    target = mlflow.Mlflow(ASKED.mlflow, tmp_path, lambda *_: None, tmp_path, {})  # type: ignore[arg-type]
    key = target._key()
    loggers = Loggers(ASKED, tmp_path)
    loggers.begin(0)
    loggers.step(numbers(1))
    loggers.close()
    assert Stored(tmp_path / "mlruns").run.data.tags[mlflow.KEY_TAG] == key


def test_a_run_that_ends_before_it_has_told_anything_makes_none(tmp_path: Path) -> None:
    loggers = Loggers(ASKED, tmp_path)
    loggers.begin(0)
    loggers.close(finished=True)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"loggers.mlflow needs the package mlflow-skinny, or mlflow, in the image"):
        Loggers(ASKED, tmp_path)


def test_a_run_without_a_folder_is_told_where_a_server_can_be_named() -> None:
    with pytest.raises(ConfigError, match=r"loggers.mlflow.trackingUri, or MLFLOW_TRACKING_URI"):
        Loggers(ASKED, None)


def test_images_that_know_no_mlflow_get_a_config_without_it() -> None:
    job = {"data": {"path": "/data"}, "steps": 1, "batch": {"global": 1}, "loggers": {"tensorBoard": {}}}
    assert TrainingConfig.model_validate(job).model_dump(mode="json")["loggers"] == {"tensorBoard": {"directory": None}}
    job["loggers"] = {"mlflow": {"trackingUri": "http://mlflow:5000"}}
    told = TrainingConfig.model_validate(job).model_dump(mode="json")
    assert TrainingConfig.model_validate(told).loggers == config(trackingUri="http://mlflow:5000")


class Server:
    """Enough of MLflow's REST interface for one experiment, with answers that can be changed: `fail` is the status of
    all of them, `refuse` of batches with numbers."""

    def __init__(self) -> None:
        self.fail = self.refuse = 0
        self.runs: list[dict[str, Any]] = []
        self.experiments: list[str] = []
        self.metrics: list[tuple[int, float]] = []
        self.tried = threading.Semaphore(0)  # whenever somebody was turned away
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                self.answer(asked.path, {k: v[0] for k, v in parse_qs(asked.query).items()})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(urlsplit(self.path).path, json.loads(body))

            def answer(self, path: str, fields: dict[str, Any]) -> None:
                status, value = server.answer(path.partition("/mlflow/")[2], fields)
                raw = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
                if status >= 400 and value.get("error_code") != "RESOURCE_DOES_NOT_EXIST":
                    server.tried.release()

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://user:secret@127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, what: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.fail:
            return self.fail, {"error_code": "INTERNAL_ERROR", "message": "no room"}
        if what == "experiments/get-by-name":
            if not self.experiments:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}
            return 200, {"experiment": {"experiment_id": "7", "name": self.experiments[0], "lifecycle_stage": "active"}}
        if what == "experiments/create":
            self.experiments.append(fields["name"])
            return 200, {"experiment_id": "7"}
        if what == "runs/search":
            found = [run for run in self.runs if run["data"]["tags"][0]["value"] in fields["filter"]]
            return 200, {"runs": found}
        if what == "runs/create":
            info = {"run_id": f"run-{len(self.runs)}", "run_name": fields["run_name"], "experiment_id": "7"}
            tags = [tag for tag in fields["tags"] if tag["key"] == mlflow.KEY_TAG]
            self.runs.append({"info": {**info, "status": "RUNNING"}, "data": {"tags": tags}})
            return 200, {"run": self.runs[-1]}
        if what == "runs/log-batch":
            if self.refuse and fields.get("metrics"):
                return self.refuse, {"error_code": "INVALID_PARAMETER_VALUE", "message": "not such a number"}
            self.metrics += [(m["step"], m["value"]) for m in fields.get("metrics", []) if m["key"] == "train/loss"]
            return 200, {}
        if what == "runs/get":
            return 200, {"run": self.runs[0]}
        assert what == "runs/update", what
        self.runs[0]["info"]["status"] = fields["status"]
        return 200, {"run_info": self.runs[0]["info"]}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_a_server_that_is_away_for_a_while_gets_all_numbers_in_the_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow, "_PAUSES_S", (0.01, 0.02))
    said: list[str] = []
    loggers = Loggers(config(trackingUri=server.url), tmp_path, lambda *words: said.append(": ".join(words)))
    loggers.begin(0)
    server.fail = 500
    for step in range(1, 201):
        loggers.step(numbers(step, float(step)))
    for _ in range(2):
        assert server.tried.acquire(timeout=WAIT_S)
    server.fail = 0
    loggers.close(finished=True)
    assert server.metrics == [(step, float(step)) for step in range(1, 201)]
    assert [run["info"]["status"] for run in server.runs] == ["FINISHED"]
    (words,) = said
    assert words.startswith(f"LoggerFailed: MLflow at {server.url.replace('user:secret@', '')}: ")
    assert "secret" not in "".join([words, *capsys.readouterr()])


def test_what_a_server_refuses_is_said_once_and_stops_nothing_else(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    loggers = Loggers(config(trackingUri=server.url), tmp_path, lambda *words: said.append(": ".join(words)))
    loggers.begin(0)
    server.refuse = 400
    for step in (1, 2):
        loggers.step(numbers(step))
        assert server.tried.acquire(timeout=WAIT_S)
    server.refuse = 0
    loggers.step(numbers(3))
    loggers.close()
    assert server.metrics == [(3, 1.0)]
    assert len(said) == 1
    assert "not such a number" in said[0]


def test_the_end_waits_no_longer_than_it_was_told_to(server: Server, tmp_path: Path) -> None:
    held = threading.Event()
    answer = server.answer
    server.answer = lambda what, fields: (held.wait(WAIT_S), answer(what, fields))[1]  # type: ignore[method-assign]
    loggers = Loggers(config(trackingUri=server.url), tmp_path)
    loggers.begin(0)
    loggers.step(numbers(1))
    loggers.close(timeout_s=0.01)
    assert server.metrics == []
    held.set()


@pytest.mark.processes
def test_a_killed_and_resumed_training_is_one_run(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Beside TensorBoard, through a kill and a stop."""
    data = {"path": str(text)}
    asked = {"tensorBoard": {}, "mlflow": {"experiment": "texts"}}
    job = Job(ranks, tmp_path, text, loggers=asked, evaluation={"every": 4, "data": data})
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([Fault("kill", step=5, rank=0)]), environment.FAULT_SOCKET: str(socket)}
    with fault_socket(socket):
        first = job.round(1, env=faults, agent=True)
        assert first.codes == [-9, ExitCode.PEER_LOST], first.output
        second = job.round(2, env=faults, agent=True, stop_at=7, stop_bound=1)
    assert second.codes == [ExitCode.SAVED, ExitCode.SAVED], second.output
    assert job.round(3, agent=True).codes == [0, 0]
    assert not [said for said in first.output.splitlines() if "LoggerFailed" in said]
    stored = Stored(tmp_path / "mlruns")
    assert stored.run.info.status == "FINISHED"
    # The kill may take what was on its way. What comes after it is whole, and each point is one of the training's.
    told = stored.curve("train/loss")
    later = [point for point in told if point[0] > 5]
    assert later == [(step, pytest.approx(job.losses[step])) for step in range(6, 10)]
    assert {step: pytest.approx(loss) for step, loss in told}.items() <= job.losses.items()
    assert [step for step, _ in stored.curve("evaluation/loss")][-2:] == [8, 9]
    assert stored.run.data.params["optimizer.lr"] == "0.01"
    assert "loggers.mlflow.experiment" not in stored.run.data.params
    assert set(range(6, 10)) <= set(scalars(tmp_path / "tensorboard", "train/loss"))
