"""The commands of `trainmaster`, and the module of each: NAME_command.py, with its help, its arguments and its call.

`declare(command)` of such a module adds the arguments, the help and the call (`func`) to the command's parser. A module
is imported when its command is given, and it imports the code that does the work only when the command runs: no command
needs all of Trainmaster.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final[dict[str, dict[str, str]]] = {
    "This machine": {
        "init": "write the file of a first job, with comments",
        "validate": "list everything that is wrong with a job, and start nothing",
        "run": "run a job on this machine, or continue it",
        "demo": "train a small GPT on four ranks, and recover from a killed rank",
        "status": "show the state of a run, or of a job on a cluster",
        "logs": "show what the ranks of a run or a job print",
        "report": "write an HTML page: curves, recoveries and last failure",
        "profile": "record the next steps of a run or a job as a timeline",
        "prove": "check that a job trains the same model when ranks are killed",
    },
    "A cluster": {
        "submit": "create a job on a cluster",
        "restart": "restart a job, so that changes of its spec take effect",
        "delete": "delete a job; its checkpoints are kept",
        "fault": "break something in a job on purpose",
    },
    "Models and data": {
        "plan": "list the parallel layouts that a job can have, the fastest first",
        "tokenize": "convert texts to a file of token numbers",
        "import": "convert a Llama from Hugging Face's format to a checkpoint",
        "export": "write the weights of a checkpoint for other programs",
    },
    "Developers": {
        "parity": "compare each kind of parallelism with training in one process",
        "migrate": "print a job with the field names of this version",
        "completion": "print a script that completes commands and options in a shell",
    },
}
"""The commands with one line each, under the headings of `trainmaster --help`."""

ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run", "demo", "prove"),
    "job_files": ("init", "validate", "migrate"),
    "display": ("status",),
    "logs": ("logs",),
    "report": ("report",),
    "cluster_jobs": ("submit", "restart", "delete"),
    "fault_injection": ("fault",),
    "trainer_tools": ("profile", "plan", "tokenize", "import", "export", "parity", "completion"),
}
"""The commands whose modules are in each directory of `trainmaster_operator/cli`."""

FORMER: Final[dict[str, str]] = {"watch": "trainmaster status NAME --watch"}
"""Commands that were renamed, with what to type now."""


def names() -> list[str]:
    """Return the names of all commands."""
    return [name for listed in GROUPS.values() for name in listed]


def module_of(name: str) -> str:
    """Return the name of the module that declares this command."""
    (room,) = (room for room, commands in ROOMS.items() if name in commands)
    return f"{__package__}.{room}.{name}_command"
