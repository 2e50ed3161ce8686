"""Legal layouts, bubbles, bytes that are sent, and the order of layouts."""

from __future__ import annotations

import itertools
import math
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api import jobs
from trainmaster.contract.config import PipelineConfig, TrainingConfig
from trainmaster.errors import ConfigError
from trainmaster.models import allowed_parallelism as rules
from trainmaster.tools.planner import communication, layouts, schedules, trace
from trainmaster.tools.planner.estimate import best_first, estimate, with_fastest_micro_batch
from trainmaster.tools.planner.layouts import Layout, legal, micro_batches_to_compare, nearest
from trainmaster.tools.planner.machine import Machine
from trainmaster.tools.planner.survey import Survey
from trainmaster_operator.api.validation.job_validation import validate


def config(
    name: str = "gpt",
    batch: int = 16,
    micro: int | None = None,
    parallelism: dict[str, Any] | None = None,
    precision: str = "fp32",
) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"name": name, "options": {"layers": 4, "heads": 4, "width": 64, "context": 64}},
            "data": {"path": "/data"},
            "steps": 10,
            "batch": {"global": batch, "micro": micro},
            "parallelism": parallelism or {},
            "precision": precision,
        }
    )


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_all_products_that_the_loop_takes_are_listed_and_no_others(name: str) -> None:
    job = config(name)
    listed = {tuple(layout.degrees.values()) for layout in legal(job, 8)}
    axes = ("pp", "dpReplicate", "dpShard", "cp", "tp", "ep")
    every = (dict(zip(axes, degrees, strict=True)) for degrees in itertools.product((1, 2, 4, 8), repeat=len(axes)))
    expected = {tuple(degrees.values()) for degrees in every if taken(job, degrees)}
    assert listed == expected
    assert (1, 8, 1, 1, 1, 1) in listed


def taken(job: TrainingConfig, degrees: dict[str, int]) -> bool:
    """As the loop asks, with the degrees written out."""
    if math.prod(degrees.values()) // degrees["ep"] != 8:
        return False
    parallelism = type(job.parallelism).model_validate(degrees)
    changed = job.model_copy(update={"parallelism": parallelism})
    try:
        parallelism.resolve(8)
        changed.accumulation(8)
        rules.validate(changed)
    except (ConfigError, ValueError):
        return False
    return True


def test_what_the_job_says_of_an_axis_holds() -> None:
    job = config(parallelism={"pp": 2, "pipeline": {"schedule": "GPipe"}, "sharding": {"stage": 1}})
    layouts = [*legal(job, 4)]
    assert {layout.pipeline.schedule for layout in layouts if layout.degrees["pp"] > 1} == {"GPipe"}
    assert {layout.sharding.stage for layout in layouts if layout.is_sharded and layout.degrees["pp"] == 1} == {1}


def test_each_layout_is_one_that_a_job_may_say() -> None:
    options = {"pipeline": {"balance": "Parameters"}, "tensor": {"sequence": False}, "sharding": {"stage": 2}}
    fields = config(parallelism={"pp": 2, "tp": 2, **options}).model_dump(mode="json", exclude_none=True)
    del fields["optimizer"]["momentum"]  # which trainers of before want to see
    del fields["checkpoint"]  # which a job has in a block of its own
    for layout in legal(TrainingConfig.model_validate(fields), 8):
        training = {**fields, "parallelism": layout.fields}
        assert validate(jobs.job(spec__workers={"replicas": 8}, spec__training=training)) == [], layout.name
        assert layout.degrees["pp"] == 1 or "sharding" not in layout.fields


def test_compressed_gradients_are_of_layouts_with_replicas_and_less_is_sent() -> None:
    whole = config()
    fields = whole.model_dump(mode="json") | {"communication": {"compression": {"method": "PowerSGD"}}}
    job = TrainingConfig.model_validate(fields)
    replicas = {layout.degrees["dpReplicate"] for layout in legal(job, 4)}
    assert replicas == {2, 4}
    survey, machine = Survey(job.model), Machine(1e12, 1e9, None)
    degrees = {"dpReplicate": 4, "dpShard": 1}
    parallelism = type(job.parallelism).model_validate(degrees)
    sent = [
        estimate(Layout(one.model_copy(update={"parallelism": parallelism}), 4), survey, machine).sent["dpReplicate"]
        for one in (job, whole)
    ]
    assert sent[0] < sent[1] / 4


def test_the_nearest_numbers_of_ranks_are_found() -> None:
    job = config()
    assert not [*legal(job, 7)]
    below, above = nearest(job, 7)
    assert [n for n in range(below, above + 1) if any(legal(job, n))] == [below, above]


def test_far_above_what_a_model_allows_a_power_of_two_is_found_and_no_thousands_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def has_one(job: TrainingConfig, ranks: int) -> bool:
        asked.append(ranks)
        return ranks in {1, 2, 3, 4, 6, 8, 12, 16, 24}

    monkeypatch.setattr(layouts, "_any", has_one)
    assert nearest(config(), 14) == [12, 16]
    assert nearest(config(), 24 + layouts.NEAR) == [24]
    asked.clear()
    assert nearest(config(), 900) == [16]
    assert len(asked) == 2 * layouts.NEAR + len([512, 256, 128, 64, 32, 16])
    assert (min(asked), max(asked)) == (16, 900 + layouts.NEAR)


def test_of_thousands_of_products_only_those_that_divide_the_batch_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    allowed = layouts._allowed

    def counting(job: TrainingConfig, parallelism: dict[str, Any], ranks: int) -> Layout | None:
        tried.append(parallelism["dpReplicate"] * parallelism["dpShard"])
        return allowed(job, parallelism, ranks)

    monkeypatch.setattr(layouts, "_allowed", counting)
    job = config()
    assert [*legal(job, 1024)]
    assert {job.batch.global_ % data for data in tried} == {0}


@pytest.mark.parametrize(
    ("schedule", "share"),
    [
        ("GPipe", 3 / 11),
        ("1F1B", 3 / 11),
        ("Interleaved1F1B", 1.5 / 9.5),
        ("InterleavedZeroBubble", 0.5 / 8.5),
        ("ZBV", 0.0),
        ("DualPipeV", 1 / 9),
    ],
)
def test_bubbles_are_those_of_the_papers(schedule: str, share: float) -> None:
    pipeline = PipelineConfig.model_validate({"schedule": schedule})
    assert schedules.bubble(pipeline, 4, 8) == pytest.approx(share)
    assert schedules.bubble(pipeline, 1, 8) == 0.0


MACHINE = Machine(flops=1e12, bandwidth=1e9, memory=None)


@cache
def survey() -> Survey:
    return Survey(config().model)


def sent(parallelism: dict[str, Any], ranks: int, micro: int | None = None) -> dict[str, float]:
    job = config(parallelism=parallelism, micro=micro)
    return estimate(Layout(job, ranks), Survey(job.model), MACHINE).sent


def test_replicas_send_each_gradient_twice_but_for_their_own_part() -> None:
    size = Survey(config().model).inventory.size
    assert sent({"dpReplicate": 4}, 4) == {"dpReplicate": pytest.approx(2 * 3 / 4 * 4 * size)}


def test_shards_are_gathered_once_or_twice_in_a_micro_batch_by_their_stage() -> None:
    inventory = Survey(config().model).inventory
    blocks = inventory.layers * sum(math.prod(p.shape) for p in inventory.block)
    ends = inventory.size - blocks
    part = 3 / 4 * 4  # of an element, in bytes
    for stage, expected in (
        (1, 2 * inventory.size),
        (2, 3 * inventory.size),
        (3, 2 * (2 * blocks + ends) + 2 * inventory.size),
    ):
        found = sent({"dpShard": 4, "sharding": {"stage": stage}}, 4, micro=2)
        assert found == {"dpShard": pytest.approx(part * expected)}


def test_tensor_parallelism_sends_the_stream_eight_times_a_block() -> None:
    """Four regions' ends a block, forward and backward (arXiv 2205.05198), each half of it from two ranks."""
    stream = 16 * 64 * 64 * 4 / 2
    found = sent({"tp": 2}, 2)["tp"]
    ends = 4 * stream  # embedding and head, forward and backward
    assert 4 * 8 * stream + ends <= found <= 1.05 * (4 * 8 * stream + ends)


def test_stages_send_the_stream_on_and_its_gradients_back() -> None:
    job = config(parallelism={"pp": 2})
    assert sent({"pp": 2}, 2) == {"pp": 2 * 16 * 64 * 64 * 4}
    assert communication.of_stages(Layout(job, 2), 10, 3) == 60


def test_what_does_not_fit_comes_last_and_micro_batches_shrink_before_that() -> None:
    job = config(batch=64)
    free = best_first(legal(job, 4), survey(), MACHINE)
    limit = sorted(e.memory.peak for e in free)[len(free) // 4]
    tight = best_first(legal(job, 4), survey(), Machine(1e12, 1e9, limit))
    fit = [e.fits for e in tight]
    assert fit == sorted(fit, reverse=True)
    assert all((e.memory.peak <= limit) == e.fits for e in tight)
    largest = {e.layout.name: e.layout.micro_batches[0] for e in free}
    assert any(e.layout.micro_batches[0] < largest[e.layout.name] for e in tight)
    times = [e.seconds for e in tight if e.fits]
    assert times == sorted(times)


@pytest.mark.parametrize("memory", [None, 1])
def test_the_jobs_own_micro_batch_is_kept(memory: int | None) -> None:
    job = config(micro=2)
    found = best_first(legal(job, 4), survey(), Machine(1e12, 1e9, memory))
    assert {e.layout.micro_batches[0] for e in found} == {2}


@cache
def all_layouts() -> list[Layout]:
    return [*legal(config(batch=24), 4)]


@cache
def peaks() -> list[int]:
    """The memory that the layouts need with every micro-batch size, from the least to the most."""
    sizes = (one for layout in all_layouts() for one in micro_batches_to_compare(layout))
    return sorted({estimate(one, survey(), MACHINE).memory.peak for one in sizes})


@given(st.data(), st.sampled_from([1e9, 1e12, 1e15]), st.sampled_from([1e8, 1e10]))
@settings(max_examples=6, deadline=None)
def test_more_memory_never_makes_the_best_layout_slower(data: st.DataObject, flops: float, bandwidth: float) -> None:
    memories = sorted(data.draw(st.lists(st.sampled_from(peaks()), min_size=2, max_size=3)))
    best = [best_first(all_layouts(), survey(), Machine(flops, bandwidth, memory))[0] for memory in memories]
    assert all(e.fits for e in best)
    times = [e.seconds for e in best]
    assert times == sorted(times, reverse=True)


def test_a_pipeline_takes_smaller_micro_batches_than_fit_because_its_bubble_is_smaller() -> None:
    machine = Machine(flops=1e9, bandwidth=1e12, memory=None)
    layout = Layout(config(batch=32, parallelism={"pp": 4}), 4)
    assert layout.micro_batches == (4, 8)
    found = with_fastest_micro_batch(layout, survey(), machine)
    assert found.layout.micro_batches == (1, 32)
    assert found.seconds < estimate(layout, survey(), machine).seconds


def test_the_largest_of_equally_fast_micro_batches_is_taken() -> None:
    layout = Layout(config(batch=48), 1)
    assert with_fastest_micro_batch(layout, survey(), MACHINE).layout.micro_batches == (48, 1)


def test_few_sizes_are_compared_of_a_share_with_many_divisors() -> None:
    layout = Layout(config(batch=5040), 1)
    sizes = [one.micro_batches[0] for one in micro_batches_to_compare(layout)]
    assert sizes[-1] == 1
    assert all(a >= 1.5 * b for a, b in itertools.pairwise(sizes))
    assert all(5040 % size == 0 for size in sizes)
    assert len(sizes) > 10


@pytest.mark.parametrize(
    ("degrees", "ranks_per_node", "axes"),
    [
        ({"pp": 2, "dpShard": 8}, 8, {"pp"}),
        ({"pp": 2, "dpShard": 8}, 4, {"pp", "dpShard"}),
        ({"dpReplicate": 2, "dpShard": 2, "tp": 4}, 8, {"dpReplicate"}),
        ({"dpShard": 2, "cp": 2, "tp": 4}, 8, {"dpShard"}),
        ({"dpShard": 16}, 8, {"dpShard"}),
        ({"dpShard": 16}, 16, set()),
        ({"pp": 2, "dpShard": 2, "tp": 4}, 6, {"tp", "dpShard", "pp"}),  # a node's end splits a group of tp
    ],
)
def test_axes_that_do_not_fit_into_a_node_are_between_nodes(
    degrees: dict[str, int], ranks_per_node: int, axes: set[str]
) -> None:
    layout = Layout(config(batch=64, parallelism=degrees), math.prod(degrees.values()))
    assert layout.axes_between_nodes(ranks_per_node) == axes


def test_experts_that_are_dealt_out_within_a_node_stay_within_it() -> None:
    layout = Layout(config("moe", batch=64, parallelism={"dpShard": 16, "ep": 4}), 16)
    assert layout.axes_between_nodes(8) == {"dpShard"}


def test_only_what_goes_to_other_nodes_takes_longer_over_slow_links() -> None:
    layout = Layout(config(parallelism={"pp": 2, "dpShard": 2}), 4)
    same, slow = Machine(1e30, 1e9, None), Machine(1e30, 1e9, None, between=1e8, ranks_per_node=2)
    found, reference = (estimate(layout, survey(), machine) for machine in (slow, same))
    assert found.seconds == pytest.approx((found.sent["dpShard"] + 10 * found.sent["pp"]) / 1e9)
    assert reference.seconds == pytest.approx((found.sent["dpShard"] + found.sent["pp"]) / 1e9)


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 1.0, 1.0), ("bf16", 0.4, 0.75), ("fp8", 0.3, 0.65)])
def test_lower_precision_keeps_less_but_not_of_master_weights(precision: str, least: float, most: float) -> None:
    job = config(precision=precision)
    found = estimate(Layout(job, 1), Survey(job.model), MACHINE).memory
    whole = estimate(Layout(config(), 1), Survey(job.model), MACHINE).memory
    assert found.held == whole.held
    assert least <= found.activations / whole.activations <= most


def test_a_planner_puts_no_rank_before_the_lines_of_a_traceback() -> None:
    before = sys.excepthook
    with trace._fake_world({"dpShard": 1, "cp": 1, "tp": 2}):
        pass
    assert sys.excepthook is before
