"""The meaning of a word on the command line: a run on this machine, or a job on a cluster."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from trainmaster_operator.cli import kubeconfig
from trainmaster_operator.cli.kubeconfig import Where
from trainmaster_operator.cli.output_folder import STATUS
from trainmaster_operator.cli.refusal import Refusal, why

RUNS = Path("runs")
"""The directory in which `trainmaster run` creates output folders by default."""


def of(what: str, where: Where) -> Path | None:
    """Return the output folder that a word means; None if it means a job on a cluster.

    A word with a slash is a path. Otherwise it can be a directory, the name of a run in ./runs, or the name of a job.
    Raise Refusal if it can be none of them, or two different runs.
    """
    is_path = "/" in what or what in (".", "..")
    if where.given:
        if is_path:
            raise Refusal(
                f"{what}: is not the name of a job, and -n, --kubeconfig and --context are only for jobs on a cluster"
            )
        kubeconfig.find(where)
        return None
    places = [Path(what)] if is_path else [Path(what), RUNS / what]
    runs = [place for place in places if os.path.exists(place / STATUS)]
    if len(runs) > 1 and not runs[0].samefile(runs[1]):
        raise Refusal(f"{what}: can mean two runs; write ./{what} or {runs[1]}")
    if is_path and not runs and not os.path.exists(Path(what)):
        _check_access(Path(what))
        raise Refusal(f"{what}: does not exist; the output folder of a run, or the name of a run or a job, is expected")
    if is_path:
        return Path(what)
    if runs:
        _tell_the_other_meaning(what, runs[0])
        return runs[0]
    return _without_a_run(what, where)


def check_job(name: str, where: Where, for_runs: str) -> None:
    """Raise Refusal for a word that can only be a run. `for_runs`: what to do with a run instead."""
    if not where.given and ("/" in name or os.path.exists(Path(name, STATUS))):
        raise Refusal(f"{name}: the name of a job on a cluster is expected; {for_runs}")


def _without_a_run(what: str, where: Where) -> Path | None:
    """Return the directory or None (a job) for a name that no run on this machine has. Raise Refusal if it can be
    neither."""
    try:
        kubeconfig.find(where)
    except Refusal as refusal:
        if os.path.isdir(what):
            return Path(what)  # It holds no run; the code that reads it reports that.
        raise Refusal(
            f"{what}: there is no run in {what} or {RUNS / what}, and no cluster on which it could be a job",
            *refusal.lines,
            "a job that `trainmaster run` refused leaves no run; `trainmaster validate` says what is wrong with it",
        ) from None
    if os.path.isdir(what):
        raise Refusal(f"{what}: the folder {what} holds no run; to mean the job {what} on a cluster, add -n NAMESPACE")
    return None


def _check_access(path: Path) -> None:
    """Raise Refusal if the path may exist but cannot be looked at, for example in a directory of another user."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise Refusal(f"{path}: can't be read: {why(error)}") from None


def _tell_the_other_meaning(what: str, run: Path) -> None:
    """Print how to name a job with the same name, if there is a cluster that may have one."""
    with suppress(Refusal):
        if kubeconfig.is_there():
            sys.stderr.write(
                f"trainmaster: {what} is the run in {run}; to mean the job {what} on a cluster, add -n NAMESPACE\n"
            )
