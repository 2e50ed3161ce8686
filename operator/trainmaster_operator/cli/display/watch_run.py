"""`trainmaster status DIR --watch`: shows a run on this machine until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainmaster_operator.cli import output_folder
from trainmaster_operator.cli.display import live_display
from trainmaster_operator.cli.display.piece_of_news import News, Tone
from trainmaster_operator.cli.display.scenes import Scene, scene_of_run
from trainmaster_operator.cli.display.show_status import show_run
from trainmaster_operator.cli.display.status_diff import logs_command, news
from trainmaster_operator.cli.stored_state import is_scripted, standing, state_of
from trainmaster_operator.planning.facts.job_state import JobPhase, JobState


def watch_run(
    out: Path, make: Callable[[Scene], live_display.Display], sleep: Callable[[float], Any] = time.sleep
) -> int:
    """Show a run until it ends. Return 0 if it succeeds, 1 if it fails or stops before its end. Raise Refusal if
    there is no run."""
    resource, goes_on = output_folder.look(out)
    scene = scene_of_run(resource, out)
    if not goes_on:
        return show_run(out, resource, goes_on) or _code(scene.status)
    shown = make(scene)
    shown.start()
    try:
        while True:
            resource, goes_on = output_folder.look(out)
            _tell_changes(resource, scene, shown)
            if not goes_on:
                return _conclude(out, resource, scene.status, shown)
            shown.draw()
            sleep(live_display.FRAME_S)
    except KeyboardInterrupt:
        shown.tell(News("leaving", f"the run continues; `trainmaster status {out} --watch` shows it again"))
        raise
    finally:
        shown.stop()


def _tell_changes(resource: Mapping[str, Any], scene: Scene, shown: live_display.Display) -> None:
    old, new = scene.status, state_of(resource)
    scene.status = new
    for piece in news(old, new, scripted=is_scripted(resource)):
        shown.tell(piece)


def _conclude(out: Path, resource: Mapping[str, Any], status: JobState, shown: live_display.Display) -> int:
    state, sentence = standing(out, resource, goes_on=False)
    if sentence:
        shown.tell(News(state.lower(), sentence, Tone.WARNING))
    if status.phase is JobPhase.FAILED:
        shown.tell(News("logs", logs_command(str(out), status)))
    return _code(status)


def _code(status: JobState) -> int:
    return 0 if status.phase is JobPhase.SUCCEEDED else 1
