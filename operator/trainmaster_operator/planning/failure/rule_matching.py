"""The rule of a job that matches a failure."""

from __future__ import annotations

from trainmaster_operator.api.recovery_rules import RuleSpec
from trainmaster_operator.api.rule_pattern import pattern
from trainmaster_operator.planning.facts.fault import NOT_THE_JOBS, Fault
from trainmaster_operator.planning.facts.view import View


def first_match(view: View, fault: Fault) -> tuple[RuleSpec, str] | None:
    """Return (the first rule that matches, its name or position); None if no rule matches."""
    for number, rule in enumerate(view.spec.recovery.rules):
        if _fits(rule, fault):
            return rule, rule.name or f"recovery.rules[{number}]"
    return None


def _fits(rule: RuleSpec, fault: Fault) -> bool:
    if rule.causes:
        if fault.cause.value not in rule.causes:
            return False
    elif fault.free or fault.cause in NOT_THE_JOBS:
        return False  # A rule without causes is not meant for evictions and the like.
    if rule.exitCodes and fault.shell_code not in rule.exitCodes:
        return False
    return rule.message is None or _found(rule.message, fault)


def _found(message: str, fault: Fault) -> bool:
    wanted = pattern(message)
    return any(wanted.found_in(text) for text in (fault.message, fault.traceback, fault.output) if text)
