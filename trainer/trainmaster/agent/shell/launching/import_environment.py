"""The environment with which a zygote imports for the ranks of a pod: what all of them have, in all rounds.

The other variables belong to one rank or to one round: its numbers, the address of the store. A zygote does not have
them, so a module that reads one of them at its import must not be imported there: all forks would share what it read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.agent.frameworks.framework import Facts, Framework, numbers
from trainmaster.agent.zygote import variables_that_must_match


@dataclass(frozen=True)
class ImportEnvironment:
    """own: the names of the variables of which each rank has its own value, in order."""

    variables: dict[str, str]
    own: list[str]


def import_environment(environ: Mapping[str, str], framework: Framework, *, has_accelerator: bool) -> ImportEnvironment:
    """Return the variables that all ranks have, and the names of those that the agent sets for each of them.

    environ: the variables that the job gives all its ranks.
    """
    alone = Facts(rank=0, world_size=1, has_accelerator=has_accelerator)
    of_two = Facts(rank=0, world_size=2, has_accelerator=has_accelerator)
    defaults = [framework.defaults(facts) for facts in (alone, of_two)]
    # A default that depends on the number of ranks may change with the round.
    by_size = {name for one in defaults for name in one if defaults[0].get(name) != defaults[1].get(name)}
    numbered = {*numbers(of_two), *framework.environment(of_two), *framework.peers(of_two, ["a:1", "b:2"])}
    own = numbered | (by_size - environ.keys())
    given = variables_that_must_match.without_volatile({**defaults[1], **environ})
    return ImportEnvironment({name: value for name, value in given.items() if name not in own}, sorted(own))
