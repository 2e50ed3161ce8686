"""The traceback of a script as a person reads it: without the frames of the agent's code that runs above the script."""

from __future__ import annotations

import os
import runpy
import traceback
import types

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OWN_FOLDERS = tuple(os.path.join(_PACKAGE, room) + os.sep for room in ("agent", "rank", "host"))
"""Folders of the code that runs above a script in its rank's process. Its frames are not shown to people."""


def user_traceback(error: BaseException) -> str:
    """Return the traceback as text."""
    return "".join(traceback.format_exception(type(error), error, user_frames(error)))


def user_frames(error: BaseException) -> types.TracebackType | None:
    """Return the frames of a traceback without those of the agent and of runpy above the user's first frame.

    A syntax error of the program itself has no frame of the user's, and is shown without frames, as the interpreter
    does it.
    """
    frames = error.__traceback__
    ours = (*OWN_FOLDERS, "<frozen runpy>", runpy.__file__ or "")
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(tuple(filter(None, ours))):
        if frames.tb_next is None and not isinstance(error, SyntaxError):
            break
        frames = frames.tb_next
    return frames
