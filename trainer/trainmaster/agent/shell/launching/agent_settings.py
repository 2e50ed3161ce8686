"""The settings of an agent, from its environment."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.accelerators import has_accelerator
from trainmaster.agent.frameworks.framework import Framework, wrong_address
from trainmaster.agent.shell.launching import command_interpreter
from trainmaster.agent.shell.launching.import_environment import ImportEnvironment, import_environment
from trainmaster.agent.zygote import variables_that_must_match
from trainmaster.contract.launch import Command, launcher_option_effects, parse
from trainmaster.contract.launch.framework_packages import missing
from trainmaster.contract.launch.framework_variables import refusal
from trainmaster.contract.launch.own_parser_process import OwnParsers
from trainmaster.contract.wire import Assignment, Identity, environment
from trainmaster.host import processes

TRAINMASTER = "Trainmaster"
CHECKPOINT_TIMEOUT_S = 900.0  # of a job that does not say it

# Not the ranks' business.
_OURS = {
    environment.OPERATOR_URL,
    environment.TOKEN_FILE,
    environment.CA_FILE,
    environment.ZYGOTE,
    environment.ZYGOTE_ENABLED,
    environment.TERMINATION_LOG,
    environment.CPU_MILLIS,
    environment.PINNING,
    environment.RESTART_COMMAND,
    environment.ONE_MACHINE,
    environment.PODS_AS_NODES,
    environment.WITHOUT_DEVICES,
}


@dataclass(frozen=True)
class Settings:
    identity: Identity
    operator_url: str
    token_file: str
    ca_file: str
    framework: str
    command: Command
    zygote: str
    zygote_enabled: bool
    pod_ip: str
    termination_log: str
    grace_s: float
    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S  # how long ranks that have ended wait for storage
    cpus: int = 1  # cores that this container may count on
    pinning: bool = False
    one_machine: bool = False  # all pods of the job are processes of this machine
    pods_as_nodes: bool = False  # but local ranks are numbered in each pod all the same
    without_devices: str = ""  # why its ranks see none, in words; "": they see those that there are
    environ: dict[str, str] = field(repr=False, default_factory=dict)
    restarted: Settings | None = field(repr=False, default=None)  # of the rounds after the job's first one

    @classmethod
    def read(cls, env: Mapping[str, str], asks: Callable[[str], None] = lambda launcher: None) -> Settings:
        """Return the settings. Raises ValueError that names the variable that is missing or wrong.

        `asks` is called with the name of a launcher before this waits for the launcher's own parser, which can take
        minutes.
        """
        framework = env.get(environment.FRAMEWORK, TRAINMASTER)
        environ = {name: value for name, value in env.items() if name not in _OURS}
        known = frameworks.find(framework)
        if wrong := refusal(known.name, environ):
            raise ValueError(wrong)
        pod_ip = env.get(environment.POD_IP) or "127.0.0.1"
        if wrong := wrong_address(known, pod_ip):
            raise ValueError(wrong)
        command = _command(framework, env, environ, asks)
        # A program that is executed has an interpreter of its own, which may have the packages.
        if wrong := missing(known.name, known.packages if command.entry is not None else ()):
            raise ValueError(wrong)
        settings = cls(
            identity=read_identity(env),
            operator_url=_text(env, environment.OPERATOR_URL),
            token_file=env.get(environment.TOKEN_FILE, ""),
            ca_file=env.get(environment.CA_FILE, ""),
            framework=framework,
            command=command,
            zygote=env.get(environment.ZYGOTE, ""),
            zygote_enabled=env.get(environment.ZYGOTE_ENABLED, "1") != "0",
            pod_ip=pod_ip,
            termination_log=env.get(environment.TERMINATION_LOG, ""),
            grace_s=float(env.get(environment.GRACE_S) or 25.0),
            checkpoint_timeout_s=float(env.get(environment.CHECKPOINT_TIMEOUT) or CHECKPOINT_TIMEOUT_S),
            cpus=processes.available_cpus(_cpu_millis(env)),
            pinning=env.get(environment.PINNING) == "1",
            one_machine=env.get(environment.ONE_MACHINE) == "1",
            pods_as_nodes=env.get(environment.PODS_AS_NODES) == "1",
            without_devices=env.get(environment.WITHOUT_DEVICES, ""),
            environ=_with_changes(environ, command),
        )
        if framework == TRAINMASTER or not env.get(environment.RESTART_COMMAND):
            return settings
        command = _parsed(environment.RESTART_COMMAND, env, environ, asks)
        return replace(settings, restarted=replace(settings, command=command, environ=_with_changes(environ, command)))

    def of_round(self, assignment: Assignment) -> Settings:
        """Return the settings of a round: a job's first one runs `command`, those after it `restartCommand`, also in a
        pod that is new or after the job was suspended: it is the job's rounds that count."""
        return self.restarted if self.restarted is not None and assignment.restart_count > 0 else self

    def wrong_size(self, assignment: Assignment) -> str:
        """Return what is wrong with the number of processes that the command's launcher was told; "" if nothing is.

        Later rounds may have other sizes: those of an elastic job do.
        """
        return (
            launcher_option_effects.of_job(self.command.given, assignment.world_size)
            if assignment.restart_count == 0
            else ""
        )

    def of_rank(self, local_rank: int) -> Settings:
        """Return the settings of one rank, whose LOCAL_RANK may stand in its arguments."""
        return replace(self, command=self.command.of_rank(local_rank))

    @property
    def own_loop(self) -> bool:
        return self.framework == TRAINMASTER

    @property
    def of_framework(self) -> Framework:
        return frameworks.find(self.framework)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences for the agent's log: what of the command has no effect, and, once per job, what is not
        observed."""
        unseen = self.of_framework.unseen
        return (*self.command.notes, *([unseen] if unseen and self.identity.slot == 0 else []))

    @property
    def entry(self) -> dict[str, Any] | None:
        """Return what a rank runs in a fork, or None for a program that is executed."""
        return self.of_framework.entry or self.command.entry

    @property
    def executed_entry(self) -> dict[str, Any] | None:
        return self.of_framework.executed_entry or self.entry

    def import_environment(self) -> ImportEnvironment:
        """Return the environment with which a zygote may import for these ranks."""
        has_device = has_accelerator(self.environ)
        return import_environment(self.environ, self.of_framework, has_accelerator=has_device)

    def key(self) -> str:
        """Return a name of the zygotes that may fork these ranks: those with the same interpreter and environment."""
        shared = self.import_environment()
        content = [sys.executable, sys.version, sorted(shared.variables.items()), shared.own]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def load_environment(self) -> dict[str, str]:
        """Return the variables that are read once, at load: a zygote must have been started with the same."""
        return variables_that_must_match.load_environment(self.environ)


def read_identity(env: Mapping[str, str]) -> Identity:
    """Return which agent of which job this is. Raises ValueError that names the variable that is missing or wrong."""
    return Identity(
        job_uid=_text(env, environment.JOB_UID),
        namespace=_text(env, environment.NAMESPACE),
        job=_text(env, environment.JOB),
        role=_text(env, environment.ROLE),
        slot=_number(env, environment.SLOT),
        incarnation=_number(env, environment.INCARNATION),
        pod_uid=_text(env, environment.POD_UID),
    )


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise ValueError(f"{name} is not set: an agent is started by the operator's pods, not by hand")
    return env[name]


def _number(env: Mapping[str, str], name: str) -> int:
    if not _text(env, name).isdigit():
        raise ValueError(f"{name}={env[name]!r}: a whole number is expected")
    return int(env[name])


def _cpu_millis(env: Mapping[str, str]) -> int | None:
    return _number(env, environment.CPU_MILLIS) if env.get(environment.CPU_MILLIS) else None


def _command(
    framework: str, env: Mapping[str, str], environ: Mapping[str, str], asks: Callable[[str], None]
) -> Command:
    if framework == TRAINMASTER:
        return Command([sys.executable, "-m", "trainmaster.train.loop"])
    return _parsed(environment.COMMAND, env, environ, asks)


def _parsed(variable: str, env: Mapping[str, str], environ: Mapping[str, str], asks: Callable[[str], None]) -> Command:
    """Return the command in a variable. `environ` are the variables that its ranks get."""
    raw = env.get(variable, "")
    try:
        argv = json.loads(raw)
    except ValueError:
        argv = None
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise ValueError(f'{variable}={raw!r}: a JSON list of words is expected, like ["python", "train.py"]')
    python = env.get(environment.PYTHON, "")
    zygote = env.get(environment.ZYGOTE, "")
    parsers = OwnParsers(
        environ,
        interpreter=lambda name: command_interpreter.find(name, python),
        keep=os.path.join(os.path.dirname(zygote), "launch") if zygote else "",
        asks=asks,
    )
    command = parse(argv, parsers.read, lambda program: command_interpreter.is_own(program, python))
    wrong = launcher_option_effects.of_pod(command.given, int(env.get(environment.RANKS_PER_POD) or 0))
    if wrong:
        raise ValueError(wrong)
    return command


def _with_changes(environ: Mapping[str, str], command: Command) -> dict[str, str]:
    """Return the variables of ranks, with those that their command sets or removes."""
    changed = {**environ, **command.environment}
    return {name: value for name, value in changed.items() if value is not None}
