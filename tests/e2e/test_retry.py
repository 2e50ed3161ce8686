"""A run whose device runs out of memory, and whose loss is no number any more, goes on by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.harness import Calm, run, small_demo_job


@pytest.mark.processes
def test_smaller_micro_batches_and_skipped_samples_bring_a_run_to_its_end(calm: Calm, tmp_path: Path) -> None:
    path = small_demo_job(tmp_path, 2, {"dpReplicate": 2}, 30)
    job = yaml.safe_load(path.read_text())
    job["spec"]["recovery"]["rules"] = [{"name": "bad-data", "causes": ["Diverged"], "action": "SkipData"}]
    path.write_text(yaml.safe_dump(job))
    undisturbed = calm(path)
    assert undisturbed.exit_code == 0, undisturbed.output
    stormy = run(path, tmp_path / "stormy", ["oom:rank=1,step=10,where=device", "nan:rank=0,step=20"])
    assert stormy.exit_code == 0, stormy.output

    status = stormy.status
    assert (status["microDivisor"], status["skipped"]) == (2, [[19 * 24, 20 * 24]])
    assert (status["restarts"]["free"], status["restarts"]["inPlace"]) == (1, 1)
    assert [r["cause"] for r in status["recoveries"]] == ["OutOfMemory", "Diverged"]
    assert (status["lastFailure"]["cause"], status["lastFailure"]["rule"]) == ("Diverged", "bad-data")

    expected = {step: float.fromhex(min(losses)) for step, losses in undisturbed.losses().items() if step < 20}
    for step, losses in stormy.losses().items():
        assert all(
            float.fromhex(loss) == pytest.approx(expected.get(step, float.fromhex(loss)), rel=1e-6) for loss in losses
        )
    manifests = sorted((tmp_path / "stormy" / "checkpoints").glob("step-30.r*/manifest.json"))
    newest = json.loads(manifests[-1].read_text())
    assert newest["batch"] == {"global": 24, "micro": 6, "accumulation": 2}
    assert newest["data"]["skipped"] == [[19 * 24, 20 * 24]]
    assert newest["data"]["consumed"] == 30 * 24
