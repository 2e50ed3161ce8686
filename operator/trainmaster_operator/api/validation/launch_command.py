"""Checks of a job's command before it runs: launchers that cannot work, and the number of ranks that they should start.

Only `job_validation` and the command-line tool run these checks. A stored job keeps running; if our tables do not know
an option, its agents ask the launcher's own parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainmaster.contract.launch import Command, LaunchRefused, UnknownOption, launcher_option_effects, parse
from trainmaster_operator.api.validation.cross_field_rules import Breach
from trainmaster_operator.api.validation.device_count import devices_of
from trainmaster_operator.api.validation.problem import Path

if TYPE_CHECKING:
    from trainmaster_operator.api.job_spec import JobSpec

COMMAND: Path = ("workers", "template", "spec", "containers", 0, "command")
RESTART_COMMAND: Path = ("workers", "restartCommand")


def of_launcher(spec: JobSpec) -> Iterator[Breach]:
    """Yield commands that ranks cannot run, and numbers of processes that do not match the job."""
    if spec.framework.value == "Trainmaster":
        return
    ranks = spec.workers.ranksPerPod
    for place, argv in ((COMMAND, spec.command()), (RESTART_COMMAND, spec.workers.restartCommand or [])):
        if not argv:
            continue
        try:
            given = parse(argv).given
        except UnknownOption:
            continue  # The launcher's own parser may know the option; it is asked where the launcher is installed.
        except LaunchRefused as refusal:
            yield place, str(refusal)
            continue
        wrong = launcher_option_effects.of_pod(given, ranks) or launcher_option_effects.of_job(
            given, spec.workers.replicas * ranks
        )
        devices = devices_of(spec.container())
        if not wrong and launcher_option_effects.is_counted(given) and devices and devices != ranks:
            wrong = f"torchrun counts {devices} devices in each pod, but workers.ranksPerPod is {ranks}"
        if wrong:
            yield place, wrong


def complete(spec: Any) -> None:
    """Set workers.ranksPerPod in a spec, as a person wrote it, if only the options of its launcher say how many ranks a
    pod has."""
    found = _parse_command_without_ranks(spec)
    if found is None:
        return
    command, workers = found
    replicas = workers.get("replicas", 1)
    count = (
        launcher_option_effects.ranks_per_pod(command.given, replicas)
        if isinstance(replicas, int) and replicas > 0
        else None
    )
    if count is None and launcher_option_effects.is_counted(command.given):
        count = devices_of(workers["template"]["spec"]["containers"][0]) or None
    if count is not None:
        workers["ranksPerPod"] = count


def uncounted(spec: Any) -> Iterator[Breach]:
    """Yield a problem if torchrun counts the devices or cores itself and the spec does not say how many ranks that
    makes."""
    found = _parse_command_without_ranks(spec)
    if found is not None and launcher_option_effects.is_counted(found[0].given):
        told = found[0].given["nproc_per_node"]
        yield (
            COMMAND,
            f"torchrun --nproc-per-node={told}: say in workers.ranksPerPod how many ranks each pod has",
        )


def option_for_each_pod(spec: JobSpec) -> str:
    """Return the option of the launcher in a valid job's command that says how many ranks each pod has; "" if the
    command has none."""
    argv = [] if spec.framework.value == "Trainmaster" else spec.command()
    if not argv:
        return ""
    try:
        return launcher_option_effects.option_for_each_pod(parse(argv).given)
    except UnknownOption:
        return ""  # Only the launcher's own parser can read this line.


def _parse_command_without_ranks(spec: Any) -> tuple[Command, dict[str, Any]] | None:
    """Return (the command, the workers) of a script's spec that leaves out ranksPerPod. Return None for any other
    spec."""
    if not isinstance(spec, dict) or spec.get("framework", "Trainmaster") == "Trainmaster":
        return None
    workers = spec.get("workers")
    if not isinstance(workers, dict) or "ranksPerPod" in workers:
        return None
    try:
        container = workers["template"]["spec"]["containers"][0]
        argv = [*(container.get("command") or []), *(container.get("args") or [])]
        return parse(argv), workers
    except (KeyError, IndexError, TypeError, AttributeError, LaunchRefused):
        return None  # Another check reports this problem.
