"""Tests train on the CPU, also on a machine with GPUs, unless they are about devices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import worlds
from tests.cli.conftest import WriteJob
from tests.cli.test_run_processes import SMALL
from tests.docs.executing import ON_CPU
from tests.e2e.harness import small_demo_job
from trainmaster.contract.wire import environment
from trainmaster_operator.cli.this_machine.device_plan import named

UUIDS = [f"GPU-{number}" for number in range(8)]


def test_whole_runs_of_tests_name_the_cpu(tmp_path: Path, write_job: WriteJob) -> None:
    for path in (small_demo_job(tmp_path, 2, {"dpReplicate": 2}, 5), write_job(**SMALL)):
        assert yaml.safe_load(path.read_text())["spec"]["training"]["device"] == "CPU"


def test_sessions_of_the_pages_see_no_devices() -> None:
    assert len(named(UUIDS, None)) == 8
    assert named(UUIDS, {**os.environ, **ON_CPU}["CUDA_VISIBLE_DEVICES"]) == []


def test_jobs_of_benchmarks_train_on_the_cpu_unless_they_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Rank:
        def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
            told.append(json.loads(env[environment.CONFIG])["device"])
            raise KeyboardInterrupt

    monkeypatch.setattr(worlds.subprocess, "Popen", Rank)
    for config in ({}, {"device": "CUDA"}):
        with pytest.raises(KeyboardInterrupt):
            worlds.train(config, 1)
    assert told == ["CPU", "CUDA"]
