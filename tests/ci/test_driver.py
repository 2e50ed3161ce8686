"""The phases of CI as processes: their output, the first failure, and what runs in any case."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from driver import Driver, main
from phases import Outcome, Phase

DRIVER = Path(__file__).parents[2] / ".ci" / "driver.py"
FOREVER = "import threading; threading.Event().wait()"


def python(name: str, program: str, *after: str, heavy: bool = False, cleanup: bool = False) -> Phase:
    return Phase(name, (sys.executable, "-c", program), after=after, heavy=heavy, cleanup=cleanup)


def run(folder: Path, *phases: Phase, limit_s: float = 60.0) -> tuple[bool, Driver, str]:
    out = io.BytesIO()
    driver = Driver(phases, folder, out, limit_s)
    return driver.run(), driver, out.getvalue().decode()


def waits_for(path: str) -> str:
    """A program that ends once somebody has opened the named pipe `path` for writing."""
    return f"open({path!r}).read()"


def test_phases_run_in_order_and_their_output_is_printed_whole(tmp_path: Path) -> None:
    first, second = (f"for n in range(300): print({name!r}, n)" for name in ("first", "second"))
    passed, driver, said = run(tmp_path, python("a", first), python("b", second, "a"))
    assert passed
    assert list(driver.done) == ["a", "b"]
    for name in ("first", "second"):
        assert "".join(f"{name} {n}\n" for n in range(300)) in said


def test_phases_in_parallel_do_not_mix_their_lines(tmp_path: Path) -> None:
    """Each writes half a line, waits for the other, and writes the rest."""
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
    meet = "print('{0} half', end=' ', flush=True); {1}; print('{0} rest')"
    one = python("a", meet.format("a", f"open('one', 'w').close(); {waits_for('two')}"))
    two = python("b", meet.format("b", f"{waits_for('one')}; open('two', 'w').close()"))
    passed, _, said = run(tmp_path, one, two)
    assert passed
    assert "a half a rest\n" in said
    assert "b half b rest\n" in said


def test_a_third_heavy_phase_waits_for_one_of_the_first_two(tmp_path: Path) -> None:
    """Each notes how many run at that moment."""
    (tmp_path / "running").mkdir()
    program = (
        "import os, pathlib; mark = pathlib.Path('running', str(os.getpid())); mark.touch();"
        "print('running:', len(os.listdir('running'))); mark.unlink()"
    )
    passed, _, said = run(tmp_path, *(python(name, program, heavy=True) for name in "abcdef"))
    assert passed
    assert said.count("\nrunning: ") == 6
    assert said.count("\nrunning: 1\n") + said.count("\nrunning: 2\n") == 6


class Closed(io.BytesIO):
    """A pipe whose reader has ended."""

    def flush(self) -> None:
        raise BrokenPipeError


def test_an_output_that_nobody_reads_keeps_nothing_from_being_ended_and_cleaned_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    failing = f"{waits_for('ready')}; raise SystemExit(3)"
    running = f"open('ready', 'w').close(); {FOREVER}"
    cleaning = python("clean", "open('cleaned', 'w').close()", "long", cleanup=True)
    driver = Driver((python("bad", failing), python("long", running), cleaning), tmp_path, Closed(), 60.0)
    assert not driver.run()
    assert driver.done == {"bad": Outcome.FAILED, "long": Outcome.ENDED, "clean": Outcome.PASSED}
    assert (tmp_path / "cleaned").exists()


def test_the_first_failure_ends_the_rest_and_is_told_again_at_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    failing = f"{waits_for('ready')}; print('\\n'.join(f'line {{n}}' for n in range(150))); raise SystemExit(3)"
    running = f"open('ready', 'w').close(); {FOREVER}"
    passed, driver, said = run(tmp_path, python("bad", failing), python("long", running), python("later", "", "bad"))
    assert not passed
    assert driver.done == {"bad": Outcome.FAILED, "long": Outcome.ENDED}
    *_, output, closing = said.split("the last 100 lines of bad, which failed\n")
    assert "line 49\n" in output
    assert closing.startswith("line 50\n")
    assert "line 149\n" in closing
    assert "later  did not run" in closing
    assert closing.splitlines()[-1].startswith("CI failed in ")


def test_what_is_ended_may_take_down_what_it_built(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    careful = (
        "import threading\ntry:\n open('ready', 'w').close()\n threading.Event().wait()\n"
        "finally:\n print('taken down')\n"
    )
    bad = python("bad", f"{waits_for('ready')}; raise SystemExit(1)")
    passed, driver, said = run(tmp_path, bad, python("careful", careful))
    assert not passed
    assert driver.done["careful"] is Outcome.ENDED
    assert "taken down\n" in said


def test_what_refuses_to_end_is_killed_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    os.mkfifo(tmp_path / "held")
    deaf = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if not os.fork():\n held = open('held', 'w')\n open('ready', 'w').close()\n"  # in this order
        "signal.pause()\n"
    )
    bad = python("bad", f"{waits_for('ready')}; raise SystemExit(1)")
    out = io.BytesIO()
    endings = ((signal.SIGINT, 0.0), (signal.SIGTERM, 0.0), (signal.SIGKILL, 30.0))
    driver = Driver([bad, python("deaf", deaf)], tmp_path, out, 60.0, endings)
    reader: list[str] = []
    thread = threading.Thread(target=lambda: reader.append((tmp_path / "held").read_text()))
    thread.start()
    assert not driver.run()
    assert driver.done["deaf"] is Outcome.ENDED
    thread.join(30)  # the child held the pipe open until it died
    assert reader == [""]


@pytest.mark.parametrize("code", [0, 1])
def test_what_cleans_up_runs_after_success_and_after_failure(tmp_path: Path, code: int) -> None:
    down = python("down", "print('down')", "good", cleanup=True)
    passed, driver, said = run(tmp_path, python("good", f"raise SystemExit({code})"), down)
    assert passed == (code == 0)
    assert driver.done["down"] is Outcome.PASSED
    assert "down\n" in said


def test_a_failed_cleanup_fails_the_whole(tmp_path: Path) -> None:
    passed, driver, _ = run(tmp_path, python("good", ""), python("down", "raise SystemExit(1)", "good", cleanup=True))
    assert not passed
    assert driver.done == {"good": Outcome.PASSED, "down": Outcome.FAILED}


def test_a_program_that_is_missing_fails_its_phase(tmp_path: Path) -> None:
    passed, driver, said = run(tmp_path, Phase("lost", ("./there-is-no-such-program",)))
    assert not passed
    assert driver.done == {"lost": Outcome.FAILED}
    assert "there-is-no-such-program" in said.partition("output of lost")[2]


def test_after_the_limit_everything_is_ended_and_cleaned_up(tmp_path: Path) -> None:
    down = python("down", "", "long", cleanup=True)
    passed, driver, said = run(tmp_path, python("long", FOREVER), down, limit_s=0.0)
    assert not passed
    assert driver.done == {"long": Outcome.ENDED, "down": Outcome.PASSED}
    assert "CI takes longer than 0 minutes" in said


def test_a_signal_ends_the_phases_and_cleans_up(tmp_path: Path) -> None:
    """The driver as a process of its own, as it is when CI is told to stop."""
    os.mkfifo(tmp_path / "ready")
    endless = f"open('ready', 'w').close(); {FOREVER}"
    program = (
        f"import sys; sys.path.insert(0, {str(DRIVER.parent)!r})\n"
        "import driver, phases, pathlib\n"
        f"long = phases.Phase('long', (sys.executable, '-c', {endless!r}))\n"
        "down = phases.Phase('down', ('echo', 'taken', 'down'), after=('long',), cleanup=True)\n"
        f"driver.plan.PHASES, driver.REPOSITORY = (long, down), pathlib.Path({str(tmp_path)!r})\n"
        "sys.exit(driver.main([]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    (tmp_path / "ready").read_text()
    process.terminate()
    said, _ = process.communicate()
    assert process.returncode == 1
    assert "CI was told to stop" in said
    assert "taken down\n" in said


def test_an_argument_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["everything"])
    assert refused.value.code == 2
    assert "unrecognized arguments: everything" in capsys.readouterr().err
