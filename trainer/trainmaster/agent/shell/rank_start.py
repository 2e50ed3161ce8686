"""Starts one rank: with its environment and its cores, forked from a zygote or executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.launching.rank_environment import neighbours, rank_environment
from trainmaster.agent.shell.ranks.rank_process import Rank
from trainmaster.agent.shell.zygote_client import Zygotes
from trainmaster.contract.wire import Assignment
from trainmaster.host import pinning
from trainmaster.rank import executed_rank, executed_rank_observation


def start_rank(
    rank: Rank,
    settings: Settings,
    zygotes: Zygotes,
    assignment: Assignment,
    pod_rank: int,
    way: str,
    more: Mapping[str, str],
    advise: Callable[[str, str], None],
) -> None:
    """Start `rank`, the one with number `pod_rank` in this pod.

    `way`: learned, pristine or exec, as `start_method` chose it. `more`: further environment variables.
    `advise(reason, sentence)` tells the job's owner.
    """
    env = rank_environment(settings, assignment, pod_rank, _own_cpus(settings, assignment, pod_rank, advise))
    env.update(more)
    settings = settings.of_rank(int(env["LOCAL_RANK"]))
    if not settings.own_loop:  # a script may launch its ranks itself, in every round: a fork runs it from its beginning
        env.update(executed_rank_observation.variables(env))
    if way == "exec":
        link = zygotes.root()
        argv = settings.command.argv
        if settings.executed_entry is not None:
            argv, added = executed_rank.command(settings.executed_entry, settings.command.flags)
            env.update(added)
        entry: dict[str, Any] = {"kind": "exec", "argv": argv}
    else:
        best = zygotes.best() if way == "learned" else zygotes.pristine()
        assert best is not None
        assert settings.entry is not None
        link, entry = best, settings.entry
    rank.started(zygotes.start(link, entry, env, os.getcwd(), rank.descriptors(), rank.exited))


def _own_cpus(
    settings: Settings, assignment: Assignment, pod_rank: int, advise: Callable[[str, str], None]
) -> list[int]:
    """Return the CPUs that a rank is pinned to, [] if it is not."""
    ranks, index = neighbours(settings, assignment, pod_rank)
    if not settings.pinning or ranks == 1:
        return []
    try:
        return pinning.share(settings.cpus, ranks, index)
    except ValueError as error:
        if pod_rank == 0:
            advise("NotPinned", f"ranks aren't pinned to cores: {error}")
        return []
