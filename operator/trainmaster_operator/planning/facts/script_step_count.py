"""Step numbers of scripts whose optimizer does not count steps (SGD): their agents count from 0 in each process.

Such a script continues from its own last save if it loads a file before its first step, and begins at step 0 if it
loads none. One rank that loads is enough evidence for all, because often only one of them loads. The count is corrected
here for all ranks alike, before any policy reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.contract.wire import Trained
from trainmaster_operator.planning.facts.job_state import JobState
from trainmaster_operator.planning.facts.observation import AgentRecord

if TYPE_CHECKING:
    from trainmaster_operator.planning.facts.view import View


def of_the_job(status: JobState, agents: Sequence[AgentRecord | None]) -> list[AgentRecord | None]:
    """Return the agents with step numbers of the job instead of step numbers of a process, for rounds that continued
    from a save."""
    loaded = {a.round for a in agents if a is not None and a.loaded and a.resumed_step is None}
    before = {number: _before(status, agents, number) for number in loaded}
    return [
        agent if agent is None or agent.resumed_step is not None else _counted(agent, before.get(agent.round, 0))
        for agent in agents
    ]


def last_save(view: View) -> int:
    """Return the step after which the script last saved, as far as it is known; 0 if it never did. A script that
    began again at step 0 saves earlier steps than the process before it."""
    saved = max((a.last_save for a in view.in_round()), default=0)
    return saved or max(view.status.progress.lastSave, _find_late_save(view.status, view.agents))


def is_known(status: JobState) -> bool:
    """Return whether the steps of the status are those of the job. They are not for a script that had stepped before
    a restart if neither its optimizer nor `torch.save` and `torch.load` show where it continued."""
    over = [r for r in status.recoveries if r.totalSeconds is not None and not r.overtaken]
    return bool(status.progress.lastSave) or not any(r.step and r.resumedStep is None for r in over)


def repeats(view: View, resume_told: bool) -> bool:
    """Return whether steps of a round up to the highest one are done for a second time, as far as it is known.
    `resume_told`: the round reported where it began."""
    return resume_told or not view.scripted or last_save(view) > 0


def at_the_end(view: View) -> dict[str, object]:
    """Return the fields for the following round: the script's last save, and the step from which the processes of
    this round count. Return {} while a round forms, because these fields were written when the previous round ended."""
    if not view.round_is_open:
        return {}
    loaded = any(agent.loaded for agent in view.in_round())
    start = _before(view.status, view.agents, view.status.round) if loaded else 0
    return {"roundLastSave": last_save(view), "roundSavedFrom": start}


def began_after(status: JobState, saved_before: int) -> int:
    """Return the step at which the round of the status began, for a script that loaded a file. `saved_before`: the
    latest save in the round before it that an agent of this round reports, in steps of a process; 0 if there is
    none."""
    return max(status.roundLastSave, status.roundSavedFrom + saved_before if saved_before else 0)


def _before(status: JobState, agents: Sequence[AgentRecord | None], number: int) -> int:
    """Return the step at which a round began. Agents opened the rounds after the one of the status, so those
    continue from what was known."""
    if number > status.round:
        return status.progress.lastSave
    return began_after(status, _saved_late(status, agents))


def _find_late_save(status: JobState, agents: Sequence[AgentRecord | None]) -> int:
    """Return the step of the last save in the round before the status' one; 0 if no agent knows of any.

    A round can end before the agent of the rank that saved has reported the save, so that agent reports it in the next
    round.
    """
    latest = _saved_late(status, agents)
    return status.roundSavedFrom + latest if latest else 0


def _saved_late(status: JobState, agents: Sequence[AgentRecord | None]) -> int:
    """Return that step as the process counted it."""
    steps = [agent.saved_before for agent in agents if agent is not None and agent.round == status.round]
    return max(steps, default=0)


def _counted(agent: AgentRecord, before: int) -> AgentRecord:
    if not before:
        return agent
    return replace(
        agent,
        ranks=tuple(replace(rank, step=before + rank.step) for rank in agent.ranks),
        resumed_step=before,
        last_save=agent.last_save and before + agent.last_save,
        verdict=agent.verdict and replace(agent.verdict, step=before + agent.verdict.step),
        trained=tuple(
            _of_round(trained, before) if trained.round == agent.round else trained for trained in agent.trained
        ),
    )


def _of_round(trained: Trained, before: int) -> Trained:
    return replace(trained, step=before + trained.step, resumed_step=before)
