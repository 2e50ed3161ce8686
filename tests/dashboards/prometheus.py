"""A real Prometheus for tests: Debian's package, unpacked into a cache without being installed, and its promtool."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.ports import free_port
from tests import tied

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmaster-tests" / "prometheus"
STARTS_WITHIN_S = 60.0
POLL_S = 0.05

Labels = tuple[tuple[str, str], ...]
"""Sorted, without the name of the metric."""


class NoPrometheus(Exception):
    """There is no Prometheus, and none can be had; the message says what to do."""


def program(name: str) -> Path:
    """The path of `prometheus` or `promtool`: those that are installed, or Debian's package, downloaded once."""
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / "usr" / "bin" / name
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _download()
    return path


def _download() -> None:
    if shutil.which("apt-get") is None:
        raise NoPrometheus("install Prometheus 2.42 or newer first: only Debian's package is downloaded from here")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "download", "-qq", "prometheus"]):
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, check=False)
    packages = sorted(CACHE.glob("prometheus_*.deb"))
    if not packages:
        raise NoPrometheus(f"`apt-get download prometheus` brought nothing: {done.stderr.strip()}")
    subprocess.run(["dpkg", "-x", str(packages[-1]), str(CACHE)], check=True)
    for package in packages:
        package.unlink()


def promtool(*arguments: str | Path, folder: Path | None = None) -> tuple[int, str]:
    """(exit code, what it said)."""
    done = subprocess.run(
        [str(program("promtool")), *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def write_blocks(openmetrics: str, folder: Path) -> None:
    """Make blocks of a Prometheus in `folder` from samples with their times, in the OpenMetrics format."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "history.txt"
    text.write_text(openmetrics)
    code, said = promtool("tsdb", "create-blocks-from", "openmetrics", text, folder)
    assert code == 0, said
    text.unlink()


@dataclass(frozen=True)
class Series:
    """One series of an answer: the values by time, in seconds since 1970."""

    labels: Labels
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        return self.points[-1][1]

    def of(self, label: str) -> str:
        return dict(self.labels).get(label, "")


class BadQuery(Exception):
    """Prometheus did not understand an expression."""


class Prometheus:
    """The server's API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def at(self, expr: str, time_s: float) -> list[Series]:
        """The value of an expression at one time. Raises BadQuery."""
        return self._series("query", {"query": expr, "time": f"{time_s:.3f}"})

    def over(self, expr: str, begin_s: float, end_s: float, step_s: float) -> list[Series]:
        """The values of an expression over time. Raises BadQuery."""
        times = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self._series("query_range", {"query": expr, **times})

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("targets", {})["activeTargets"]
        return found

    def _series(self, call: str, arguments: Mapping[str, str]) -> list[Series]:
        data = self._get(call, arguments)
        if data["resultType"] in ("scalar", "string"):
            at, value = data["result"]
            return [Series((), ((at, float(value)),))]
        found = []
        for item in data["result"]:
            labels = tuple(sorted((k, v) for k, v in item["metric"].items() if k != "__name__"))
            points = item.get("values") or [item["value"]]
            found.append(Series(labels, tuple((at, float(value)) for at, value in points)))
        return found

    def _get(self, call: str, arguments: Mapping[str, str]) -> Any:
        data = urllib.parse.urlencode(arguments).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{call}", data if arguments else None)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise BadQuery(f"{arguments.get('query', call)}: {json.load(error).get('error')}") from None


@contextmanager
def serving(
    folder: Path,
    targets: Mapping[str, Mapping[str, str]] | None = None,
    interval_s: float = 1.0,
    lookback_s: float = 300.0,
) -> Iterator[Prometheus]:
    """A Prometheus on loopback over the data in `folder`, which scrapes `targets` (host:port -> labels).

    `lookback_s`: for so long a series is there that has no new samples. A scrape notes the end of a series, made-up
    history can't: there it should be less than the time between two samples.
    """
    port = free_port()
    scrape = {
        "job_name": "trainmaster",
        "honor_labels": True,
        "scrape_interval": f"{int(interval_s * 1000)}ms",
        "scrape_timeout": f"{int(interval_s * 1000)}ms",
        "static_configs": [{"targets": [at], "labels": dict(labels)} for at, labels in (targets or {}).items()],
    }
    config = folder / "prometheus.yaml"
    # The points of a subquery lie as far apart as rules are evaluated: as often as it scrapes, as is usual.
    rules = {"evaluation_interval": scrape["scrape_interval"]}
    config.write_text(yaml.safe_dump({"global": rules, "scrape_configs": [scrape] if targets else []}))
    command = [
        str(program("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}",
        "--storage.tsdb.retention.time=10y",
        f"--query.lookback-delta={int(lookback_s * 1000)}ms",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with open(folder / "log", "wb") as log:
        process = tied.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_until_ready(process, port, folder / "log")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _wait_until_ready(process: subprocess.Popen[Any], port: int, log: Path) -> None:
    """Prometheus tells nobody when it is ready: it has to be asked."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Prometheus ended with {process.returncode}: {log.read_text()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(POLL_S)
    raise AssertionError(f"Prometheus was not ready within {STARTS_WITHIN_S:g} s: {log.read_text()}")


def numbers(series: Sequence[Series]) -> list[float]:
    """Every value that is a number."""
    return [value for one in series for _, value in one.points if not math.isnan(value)]
