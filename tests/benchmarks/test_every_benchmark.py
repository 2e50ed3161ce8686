"""No benchmark escapes: each module is imported, each program is run at toy size by a test that is named here."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TESTS = Path(__file__).parent

RUN_BY = {
    "cluster_lost_node": "test_cluster_benchmarks.py::"
    "test_the_phases_of_a_lost_node_follow_one_another_and_the_node_is_healed",
    "cluster_recovery": "test_cluster_benchmarks.py::test_recoveries_on_a_cluster_are_read_from_the_ranks_stamps",
    "cluster_spares": "test_cluster_benchmarks.py::test_a_job_that_loses_a_pod_is_legal_and_its_interruption_is_told",
    "compiling": "test_loops.py::test_compiled_runs_and_eager_ones_take_turns",
    "create": "test_cluster_benchmarks.py::test_creation_is_judged_by_the_ratio_of_turns",
    "cuda_recovery": "test_cluster_benchmarks.py::test_without_a_device_there_is_nothing_to_measure",
    "fleet": "test_fleet.py::test_a_few_agents_go_through_all_that_is_measured",
    "fleet_agents": "test_fleet.py::test_a_few_agents_go_through_all_that_is_measured",
    "framework_recovery": "test_framework_recovery.py::test_a_rank_is_killed_until_it_has_come_back_often_enough",
    "goodput": "test_goodput.py::test_a_run_with_faults_ends_with_the_losses_of_a_calm_one",
    "goodput_light_script": "test_goodput.py::test_a_run_with_faults_ends_with_the_losses_of_a_calm_one",
    "goodput_script": "test_goodput.py::test_the_script_repeats_its_steps_bit_for_bit_after_a_restart",
    "idle": "test_cluster_benchmarks.py::test_what_idle_jobs_cost_is_told_by_replica",
    "jobset": "test_cluster_benchmarks.py::test_under_jobset_ranks_find_rank_0_and_know_their_attempt",
    "kwok": "test_cluster_benchmarks.py::"
    "test_a_bare_client_posts_the_operators_pods_and_they_are_seen_to_come_and_to_run",
    "link": "test_loops.py::test_every_method_on_a_slow_link_is_a_job_that_is_legal",
    "lossy": "test_loops.py::test_every_technique_of_the_losses_is_a_job_that_is_legal",
    "memory": "test_loops.py::test_each_tensor_of_a_row_is_counted",
    "operator_cost": "test_operator_cost.py::test_both_checkouts_recover_in_turn_and_cpu_time_is_counted",
    "outages": "test_whole_runs.py::test_a_ranks_death_is_a_stretch_without_steps",
    "overhead": "test_loops.py::test_both_sides_of_a_case_train_blocks_in_turn",
    "pages": "test_pages.py::test_a_stale_page_is_named",
    "pinning": "test_loops.py::test_pinned_runs_and_others_take_turns",
    "plain_restart": "test_framework_recovery.py::test_a_plain_restart_ends_when_all_ranks_have_ended_well",
    "recovery": "test_recovery.py::test_a_run_recovers_from_its_kill_and_is_not_made_again",
    "recovery_light_script": "test_recovery.py::test_a_run_recovers_from_its_kill_and_is_not_made_again",
    "recovery_script": "test_recovery.py::test_the_script_with_torch_stamps_its_death_and_each_part_of_its_recovery",
    "resize": "test_whole_runs.py::test_both_changes_of_size_are_seen",
    "titan_speed": "test_titan_speed.py::test_systems_train_blocks_in_turns_and_one_waits_while_the_other_trains",
    "script_recovery": "test_public_scripts.py::test_a_script_is_killed_until_it_has_come_back_often_enough",
    "scrape": "test_scrape.py::test_a_few_jobs_are_scraped_by_the_first_and_by_later_scrapes",
    "tiers": "test_whole_runs.py::test_a_lost_shard_comes_from_its_tier",
    "tiers_script": "test_whole_runs.py::test_a_lost_shard_comes_from_its_tier",
    "torn_reads": "test_torn_reads.py::test_no_read_is_torn_at_full_speed_or_after_a_kill",
    "trainer": "test_trainer.py::test_ours_and_hand_written_torch_train_the_same_and_take_turns",
    "waits": "test_loops.py::test_each_step_and_save_of_a_rank_is_timed",
}
"""Of each program the test that runs it, or, where it needs a cluster or a device, its halves against a stand-in."""
TAKES_NO_OPTIONS = {"kwok", "fleet_agents"}  # other benchmarks start them

MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def is_program(name: str) -> bool:
    return "__main__" in (FOLDER / f"{name}.py").read_text()


def test_every_program_is_run_by_a_test_that_exists() -> None:
    assert set(RUN_BY) == {name for name in MODULES if is_program(name)}
    for file, test in (each.split("::") for each in RUN_BY.values()):
        found = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert test in found, f"{file} has no {test}"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", sorted(set(RUN_BY) - TAKES_NO_OPTIONS))
def test_every_program_says_what_it_does_and_refuses_options_that_it_does_not_know(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"benchmarks.{name}").main
    for words, code in ((["--help"], 0), (["--no-such-option", "x"], 2)):
        monkeypatch.setattr(sys, "argv", [name, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
    assert "usage" in capsys.readouterr().out


TOO_FEW = {
    "cluster_lost_node": ["--samples", "0"],
    "cluster_recovery": ["--repetitions", "0"],
    "cluster_spares": ["--repetitions", "0"],
    "compiling": ["--steps", "0"],
    "create": ["--pods", "10", "0"],
    "cuda_recovery": ["--cpu", "--repetitions", "0"],
    "idle": ["--jobs", "0"],
    "link": ["--rounds", "0"],
    "lossy": ["--seeds", "0"],
    "outages": ["--repetitions", "0"],
    "pinning": ["--ranks", "1", "--steps", "0"],
    "resize": ["--repetitions", "0"],
    "scrape": ["--repetitions", "0"],
    "tiers": ["--kills", "0"],
}


@pytest.mark.parametrize("name", TOO_FEW)
def test_a_benchmark_that_would_have_nothing_to_tell_is_refused_in_a_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *TOO_FEW[name]])
    with pytest.raises(SystemExit) as refused:
        importlib.import_module(f"benchmarks.{name}").main()
    assert refused.value.code == 2
    option = next(word for word in reversed(TOO_FEW[name]) if word.startswith("--"))
    assert f"{option} 0: at least 1 is needed" in capsys.readouterr().err
