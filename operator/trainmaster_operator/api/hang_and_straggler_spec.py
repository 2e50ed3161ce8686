"""`spec.recovery.hang` and `spec.recovery.straggler`: when a silent rank hangs, and when a slow one is a straggler."""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from trainmaster.contract.config import Strict
from trainmaster_operator.api.quantities import SECONDS

HANG_LIMIT_S = 600
"""Default of `recovery.hang.limitSeconds`, in seconds."""


class HangMode(str, Enum):
    """What the operator does about ranks that hang. Notify includes Observe, and Enforce includes Notify."""

    OFF = "Off"  # Ranks are not watched.
    OBSERVE = "Observe"  # The status and the metrics report the hang.
    NOTIFY = "Notify"  # In addition, a warning event reports it.
    ENFORCE = "Enforce"  # In addition, the ranks are restarted.


class HangSpec(Strict):
    """`spec.recovery.hang`. The operator learns shorter limits than limitSeconds from the run, one each for steps,
    saves and evaluations."""

    limitSeconds: int = Field(
        HANG_LIMIT_S,
        ge=1,
        le=SECONDS,
        description="Number of seconds without any sign of life after which a rank hangs, if its Python stack does "
        "not change either. After a few steps the job learns shorter limits from its own steps, saves and "
        "evaluations. If the value is 600, a script is not watched before its first step, because it may prepare data "
        "until then. If it has another value, a script is watched from its start. The value is a whole number. It is "
        "refused with mode Off. Default: 600.",
    )
    mode: HangMode = Field(
        HangMode.ENFORCE,
        description="What happens to ranks that hang. Enforce: the ranks are restarted. Notify: a warning event "
        "names them. Observe: only status and metrics show them. Off: ranks are not watched, and limitSeconds and "
        "factor must not be set; write it in quotes, because YAML reads Off as false. In every mode a pod whose agent "
        "is silent is still replaced after recovery.agentLostSeconds. Default: Enforce.",
    )
    factor: float = Field(
        3,
        ge=1,
        le=100,
        description="Factor between the longest silence that is expected from earlier steps and the limit after which "
        "a rank hangs. A rank whose Python stack changes hangs only after this factor times limitSeconds. "
        "It is refused with mode Off. Default: 3.",
    )


class StragglerAction(str, Enum):
    """What the operator does about a straggler."""

    NOTIFY = "Notify"
    REPLACE = "Replace"


class StragglerSpec(Strict):
    """`spec.recovery.straggler`: when a rank for which the others wait in every step counts as a straggler."""

    slowdown: float = Field(
        1.5,
        gt=1,
        le=1e6,
        description="A rank is a straggler if it computes at least this many times as long as the median rank. "
        "Default: 1.5.",
    )
    windowSeconds: int = Field(
        60,
        ge=1,
        le=SECONDS,
        description="Number of seconds for which a rank must be a straggler before the action is taken. The value is "
        "a whole number. Default: 60.",
    )
    action: StragglerAction = Field(
        StragglerAction.NOTIFY,
        description="What happens to a straggler. Notify: a warning event names it. Replace: its pod is replaced, "
        "which counts towards recovery.budget.pod. Default: Notify.",
    )
