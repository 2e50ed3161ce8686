"""What an agent tells again in each of its reports."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.agent.test_client import ME, supervised
from trainmaster.agent.shell.reports_to_operator import Reporter
from trainmaster.contract.wire import CheckpointRecord, Directive, DirectiveState


def test_each_report_tells_of_the_newest_checkpoint_because_a_leader_that_was_told_may_have_died():
    record = CheckpointRecord(20, 1, "storage", "abc")
    failed = CheckpointRecord(25, 1, "storage", error="no space left on device")
    new = [[record], [], [failed]]
    told = []

    async def main():
        async def answer(report, timeout_s):
            told.append(report.inventory)
            reporter.at_once()
            if not new:
                supervisor.exit_code.set_result(0)
            return Directive(len(told), DirectiveState.RUN, 1, "tag")

        supervisor = supervised("http://x")
        supervisor.settings.identity, supervisor.warming = ME, False
        supervisor.stores = SimpleNamespace(next_address=None)
        supervisor.uploads = SimpleNamespace(take_records=lambda: new.pop(0), newest_saved=record, trouble=lambda: None)
        reporter = Reporter(supervisor)
        reporter._report = SimpleNamespace(report=answer)
        reporter._joined.set()
        reporter.at_once()
        await reporter._keep_reporting()

    asyncio.run(main())
    assert told == [[record], [record], [failed, record]]
