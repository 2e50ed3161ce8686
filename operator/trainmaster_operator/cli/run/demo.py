"""`trainmaster demo`: trains a small GPT on four ranks, kills one of them half way, and loses nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from trainmaster_operator.cli import output_folder
from trainmaster_operator.cli.job_files.validate_job import load_job
from trainmaster_operator.cli.refusal import Refusal
from trainmaster_operator.cli.report import metrics_file
from trainmaster_operator.cli.run.run_job import RunOptions, run
from trainmaster_operator.cli.this_machine import trainer_checks
from trainmaster_operator.planning.facts.counted_nouns import counted

EXAMPLE = "stdlib-gpt.yaml"
RANK = 2


def example() -> Path:
    """Return the file of the demo's job: in the package if it was installed as a wheel, otherwise in the repository.
    Raise Refusal if it is missing."""
    package = Path(__file__).resolve().parents[2]
    places = [package / "examples" / EXAMPLE, package.parents[1] / "manifests" / "examples" / EXAMPLE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise Refusal(f"the demo's job {EXAMPLE} is in none of {', '.join(str(place.parent) for place in places)}")
    return found


def demo(out: Path, plain: bool, port: int = 0) -> int:
    """Run the demo. Return the exit code of the run, or 1 if a step that ran twice had another loss. Raise Refusal."""
    file = example()
    _, job = load_job(file)
    training = job.spec.training
    assert training is not None
    half = training.steps // 2
    entropy = trainer_checks.unigram_entropy(training)
    _say(
        f"A GPT over {counted(job.spec.world_size, 'rank')} reads the source of Python's standard library, "
        f"{training.steps} steps.\n"
        f"In step {half}, rank {RANK} is killed as by `kill -9`."
    )
    if entropy is not None:
        _say(f"A model that sees no context reaches a loss of {entropy:.4f}, the text's unigram entropy (nats a byte).")
    _say("")
    fault = f"kill:rank={RANK},step={half}"
    code = run(RunOptions(job=file, out=out, faults=(fault,), port=port, plain=plain, fresh=True))
    if code:
        return code
    seen = metrics_file.read(out / output_folder.METRICS)
    _say("")
    if entropy is not None and seen.losses:
        _say(f"Unigram entropy {entropy:.4f}, final loss {seen.losses[-1]:.4f}: the model has learned from context.")
    what = "Nothing was lost" if not seen.differences else "The run did not repeat itself"
    _say(f"Rank {RANK} was killed in step {half}. {what}: {_lower(metrics_file.continuity(seen))}")
    return 1 if seen.differences else 0


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
