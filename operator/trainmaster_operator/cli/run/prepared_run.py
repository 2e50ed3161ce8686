"""A run on this machine that has passed all checks: `run_job` passes it to `local_run`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.job_spec import DistributedTrainingJob
from trainmaster_operator.cli.output_folder import OutputFolder
from trainmaster_operator.cli.this_machine.cuda_devices import DeviceLocks
from trainmaster_operator.cli.this_machine.device_plan import DevicePlan
from trainmaster_operator.cli.this_machine.script_interpreter import Interpreter


@dataclass(frozen=True)
class Prepared:
    """A run that has passed all checks. `control`: the listening socket of the control channel. `command`: what a
    user types to continue it. `devices`: those of the run, which `locks` keeps from other runs."""

    job: DistributedTrainingJob
    resource: dict[str, Any]  # As it is put into the store, with uid and status.
    faults: str
    folder: OutputFolder
    control: socket.socket
    resumes: bool
    command: str
    devices: DevicePlan
    locks: DeviceLocks
    digests: bool = False
    python: Interpreter | None = None  # The Python that runs the script; None if the job uses the built-in trainer.
    pods_as_nodes: bool = False
    failed_before: str = ""  # What a person is told if the run before failed.
