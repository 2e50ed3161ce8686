"""What the planner computes in a short way is compared with the long way, and what a person sees meanwhile.

The long way: tensors are torch's fake tensors, which say that they are on a CPU; each block of the model is counted on
its own; and each size of the micro-batch is estimated from the beginning.
"""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from trainmaster.contract.config import TrainingConfig
from trainmaster.tools.planner import command, layout_table, memory_estimate, survey, trace
from trainmaster.tools.planner.estimate import _rank, best_first, estimate
from trainmaster.tools.planner.inventory import Inventory
from trainmaster.tools.planner.layouts import Layout, legal, micro_batches_to_compare
from trainmaster.tools.planner.machine import Machine
from trainmaster.tools.planner.memory_estimate import Group
from trainmaster.tools.planner.survey import Survey

GROUPS = memory_estimate.groups
MACHINE = Machine(1e11, 1e9, None, operation_s=1e-5, collective_s=1e-4, between=1e8, ranks_per_node=2)
OPTIONS = {"layers": 4, "heads": 4, "width": 64, "context": 64}
JOBS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama-bf16": {"model": {"name": "llama", "options": {**OPTIONS, "kv_heads": 2}}, "precision": "bf16"},
    "moe-muon": {"model": {"name": "moe", "options": OPTIONS}, "optimizer": {"name": "muon"}},
    "compressed": {"communication": {"compression": {"method": "PowerSGD"}}},
    "interleaved": {"parallelism": {"pp": 2, "pipeline": {"schedule": "Interleaved1F1B"}}},
    "exchanged-heads": {"parallelism": {"cp": 2, "context": {"method": "Ulysses"}}},
    "fp8-again": {"precision": "fp8", "recompute": "Full"},
    "products-kept": {"precision": "bf16", "recompute": "Selective"},
    "reversible": {
        "model": {"name": "llama", "options": {**OPTIONS, "reversible": True}},
        "recompute": "Reversible",
    },
}


def job(name: str) -> TrainingConfig:
    usual = {
        "model": {"name": "gpt", "options": OPTIONS},
        "data": {"path": "/data"},
        "steps": 10,
        "batch": {"global": 48},
    }
    return TrainingConfig.model_validate({**usual, **JOBS[name]})


class WithoutQuestions(trace._Record):
    """Does not count it as an operation that a fake tensor is asked for its device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def with_fake_tensors(options: Any, part: trace.Slice, time: int) -> trace.Uses:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_OnMeta", lambda: mode)
        patch.setattr(trace, "_Record", WithoutQuestions)
        return trace.trace(options, part, time)


def one_by_one(inventory: Inventory, layout: Layout, blocks: Sequence[range]) -> Iterator[Group]:
    for group in GROUPS(inventory, layout, blocks):
        yield from [replace(group, times=1)] * group.times


@pytest.mark.parametrize("name", JOBS)
def test_every_layout_has_the_figures_and_the_place_that_the_long_way_gives_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job(name)
    layouts = [*legal(config, 4)]
    short = Survey(config.model)
    peaks = sorted(e.memory.peak for e in best_first(layouts, short, MACHINE))
    machine = replace(MACHINE, memory=peaks[len(peaks) // 2])
    found = [layout_table.fields(e) for e in best_first(layouts, short, machine)]

    monkeypatch.setattr(survey, "trace", with_fake_tensors)
    monkeypatch.setattr(memory_estimate, "groups", one_by_one)
    long = Survey(config.model)
    expected = []
    for layout in layouts:
        sizes = [estimate(size, long, machine) for size in micro_batches_to_compare(layout)]
        expected.append(min(sizes, key=lambda e: _rank(e)[:2]))
    assert found == [layout_table.fields(e) for e in sorted(expected, key=_rank)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO) -> io.StringIO:
    """Let the command read a job and write its errors to `terminal`, and return it."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(job("gpt").model_dump_json()))
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


DESCRIBED = ["--ranks", "2", "--top", "1", "--tflops", "1", "--bandwidth", "1"]


def test_layouts_are_counted_on_a_terminal_and_the_line_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = screen(monkeypatch, Terminal())
    assert command.main(DESCRIBED) == 0
    count = len([*legal(job("gpt"), 2)])
    lines = written.getvalue().split("\r")
    assert lines == ["", *(f"{n} of {count} layouts are compared" for n in range(count)), "\x1b[K"]


def test_layouts_are_not_counted_in_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written = screen(monkeypatch, io.StringIO())
    assert command.main(DESCRIBED) == 0
    assert written.getvalue() == ""


def test_ctrl_c_removes_the_line_that_counts_layouts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    written = screen(monkeypatch, Terminal())
    monkeypatch.setattr(survey, "trace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.main(DESCRIBED)
    assert written.getvalue().endswith("layouts are compared\r\x1b[K")
    assert capsys.readouterr().out == ""


def test_ctrl_c_while_torch_is_loaded_ends_a_plan_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == command.__name__:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, command.__name__)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("trainmaster.tools.planner", run_name="__main__")
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
