"""XGBoost: its collective, over which `xgboost.train` sums histograms of all ranks.

Ranks find each other through a tracker, and take leave of it. Rank 0 opens it in its own process, and a script joins by
`with xgboost.collective.CommunicatorContext():` without arguments. Each context of a process has a tracker of its own,
at another port: the port of the last one may still be waiting for packets of its connections (TIME_WAIT), and a rank
that leaves a context before rank 0 would join a tracker that is about to end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from trainmaster.agent.frameworks import rank_addresses
from trainmaster.agent.frameworks.framework import Facts, Framework, Meeting, Watch, from_numbers

URI, PORT = "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT"
SAYS_AFTER_S = 60
"""Time in seconds after which a rank says that it waits until rank 0 has opened the tracker."""
LEAVES_S = 300
"""Longest time in seconds for which rank 0 waits until the other ranks have left, too."""
TRY_AGAIN_S = 0.02
NO_TRACKER = "Failed to connect to the tracker"
"""What XGBoost's error says if nobody listens at the tracker's address."""

_trackers: list[Any] = []  # of the context that rank 0 is in; a tracker ends with its last reference
_left: list[Any] = []  # of contexts that an exception has left; waited for at the end of the process
_raised: BaseException | None = None  # what is handled where the context was entered


def peers(facts: Facts, addresses: Sequence[str]) -> dict[str, str]:
    """Return where the tracker is: at the address that rank 0 has chosen."""
    host, _, port = addresses[0].rpartition(":")
    return {URI: host.strip("[]"), PORT: port}


def _join_by_default(module: Any, watch: Watch) -> None:
    """Let `init` without a tracker in its arguments use the next tracker of this round."""
    original = module.init

    @functools.wraps(original)
    def init(**given: Any) -> None:
        global _raised
        if _is_default((), given) and URI in os.environ:
            facts = from_numbers(os.environ)
            uri, port = os.environ[URI], int(os.environ[PORT])
            if facts.rank == 0:
                _trackers[:] = [_open_tracker(uri, port, facts.world_size)]
                _raised = sys.exc_info()[1]
            given = {"dmlc_tracker_uri": uri, "dmlc_tracker_port": port, **given}
            # The name decides the rank: the tracker sorts by it.
            if not _is_given("dmlc_task_id", given):
                given["dmlc_task_id"] = f"{facts.rank:09d}"
            _join(original, given)
            # Now, while all ranks are here: when they leave the context, one may have failed in it.
            port = module.broadcast(rank_addresses.free_port(uri) if facts.rank == 0 else None, root=0)
            os.environ[PORT] = str(port)
        else:
            original(**given)
        watch.met()

    finish = module.finalize

    @functools.wraps(finish)
    def finalize() -> None:
        global _raised
        finish()
        before, _raised = _raised, None
        error = sys.exc_info()[1]
        if error is None or error is before or (isinstance(error, SystemExit) and not error.code):
            _close(_trackers)
            return
        # The others may leave long after it, or never. Until they do, nobody would learn what has failed here.
        if isinstance(error, Exception) and _trackers:
            _left.extend(_trackers)
            atexit.register(_close_left, os.getpid())
        _trackers.clear()

    module.init, module.finalize = init, finalize


def _join(original: Callable[..., None], given: dict[str, Any]) -> None:
    """Join the others, as soon as rank 0 has opened the tracker. It may prepare data for hours before that. If it
    fails, the round ends.

    XGBoost sleeps for two seconds after the first refused connection and for four after the second. The second one is
    always refused, because it uses the same socket (https://github.com/dmlc/xgboost, src/collective/socket.cc). So a
    rank that was milliseconds earlier than rank 0 would join six seconds later.
    """
    if _is_given("dmlc_retry", given):
        original(**given)
        return
    xgboost: Any = importlib.import_module("xgboost")
    says_at = time.monotonic() + SAYS_AFTER_S
    while True:
        try:
            with xgboost.config_context(verbosity=0):  # each refused connection is a warning
                original(**given, dmlc_retry=1)
            return
        except xgboost.core.XGBoostError as error:
            if NO_TRACKER not in str(error):
                raise
        if time.monotonic() > says_at:
            says_at = math.inf
            where = f"{given['dmlc_tracker_uri']}:{given['dmlc_tracker_port']}"
            words = (
                f"waits for rank 0, which has not entered its CommunicatorContext yet, or can't be reached at {where}"
            )
            print(f"trainmaster: this rank {words}", file=sys.stderr, flush=True)
        time.sleep(TRY_AGAIN_S)


def _open_tracker(host: str, port: int, ranks: int) -> Any:
    module: Any = importlib.import_module("xgboost.tracker")
    tracker = module.RabitTracker(n_workers=ranks, host_ip=host, port=port, sortby="task")
    tracker.start()
    return tracker


def _close(trackers: list[Any]) -> None:
    """Wait until each rank has left: one that finds no tracker fails, for example because it has saved its model for
    longer than rank 0, whose process would end."""
    while trackers:
        with contextlib.suppress(ValueError):  # a rank has ended without leaving
            trackers.pop().wait_for(timeout=LEAVES_S)


def _close_left(pid: int) -> None:
    if os.getpid() == pid:  # a fork has no tracker
        _close(_left)


def _count_rounds(module: Any, watch: Watch) -> None:
    """Report each boosting round as a step. A model that continues a saved one counts its rounds, too.

    A process may train one model after another, as the folds of a cross-validation. A model that has fewer rounds than
    the process has taken steps is a further one, so its rounds count on from the last step.
    """
    original = module.CallbackContainer.after_iteration
    before: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by training: steps before the first round of its model
    base = highest = -1  # the step after which the process began, and the last one

    @functools.wraps(original)
    def after_iteration(container: Any, model: Any, epoch: int, *args: Any, **kwargs: Any) -> Any:
        nonlocal base, highest
        count = getattr(model, "num_boosted_rounds", None)
        rounds = int(count()) if count is not None else epoch + 1
        if highest < 0:
            base = highest = rounds - 1
        if container not in before:
            before[container] = max(highest - (rounds - 1), 0)
        step = before[container] + rounds
        if step > highest:
            highest = step
            watch.completed(step, resumed=base if count is not None else -1)
        return original(container, model, epoch, *args, **kwargs)

    module.CallbackContainer.after_iteration = after_iteration


def _is_default(args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    return not _is_given("dmlc_tracker_uri", given) and given.get("dmlc_communicator", "rabit") == "rabit"


def _is_given(name: str, given: dict[str, Any]) -> bool:
    """Return True if a script passes an argument, whose name may also be in capitals.

    XGBoost ends a process that passes both.
    """
    return name in given or name.upper() in given


XGBOOST = Framework(
    "XGBoost",
    ("xgboost",),
    peers=peers,
    addresses=True,
    hooks={"xgboost.collective": _join_by_default, "xgboost.callback": _count_rounds},
    meeting={"xgboost.collective": Meeting("init", _is_default)},
)
