"""Stamps each optimizer step of a script that knows nothing of it, and kills a process of the script where asked.

This folder stands in PYTHONPATH, under whatever starts the script. Variables (see `benchmarks.public_scripts.stamps`):
SCRIPT_STAMPS is the folder of the stamps; SCRIPT_HOOK the module whose steps count; SCRIPT_KILL says who is killed
when; SCRIPT_PACE is a pause in seconds after each step; after each SCRIPT_BLOCK steps a rank waits until it gets a byte
from the pipe `turn-RANK` in the folder of the stamps. With SCRIPT_HOOK=time.sleep the script itself pauses for
SCRIPT_PACE seconds after each step, and these pauses are what counts: frameworks without torch have no other place
that is the same in all of them.
"""

import importlib.util
import os
import signal
import sys
import time

_HOOK = os.environ.get("SCRIPT_HOOK", "torch.optim.optimizer")
_PAUSES = "time.sleep"
_sleep = getattr(time.sleep, "original", time.sleep)  # in a fork of a process that has this file's `sleep`
# Torch, and torchtitan, take a step that changes nothing, to fill an optimizer's empty state.
_FILLING = ("_init_optim_state", "init_optim_state")


class _Finder:
    """Hooks the module with the optimizers once it is imported; imports are as they would be without it."""

    def find_spec(self, name, path=None, target=None):
        if name != _HOOK:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.register_optimizer_step_post_hook(_Steps())

        spec.loader.exec_module = exec_module
        return spec


class _Steps:
    """Is called after each step of an optimizer in this process, or in a fork of it. Several optimizers that step in
    turn, or an optimizer that calls others, make one step together."""

    def __init__(self):
        self.pid = self.count = self.first_ns = 0
        self.taken = {}

    def __call__(self, optimizer=None, *_):
        now = time.monotonic_ns()
        if _is_filling(sys._getframe(1)):
            return
        if self.pid != os.getpid():
            self.pid, self.count, self.first_ns, self.taken = os.getpid(), 0, now, {}
        taken = self.taken[id(optimizer)] = self.taken.get(id(optimizer), 0) + 1
        if taken <= self.count:
            return
        self.count = taken
        rank, attempt = _rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        _append("steps", f"{now} {self.pid} {rank} {attempt} {self.count}\n")
        self._die(now)
        self._wait_for_turn(rank)
        _sleep(float(os.environ.get("SCRIPT_PACE", "0")))

    def _wait_for_turn(self, rank):
        block = int(os.environ.get("SCRIPT_BLOCK", "0"))
        if block and self.count % block == 0:
            with open(os.path.join(os.environ["SCRIPT_STAMPS"], f"turn-{rank}"), "rb", buffering=0) as pipe:
                pipe.read(1)

    def _die(self, now):
        """Kill this process if it is its turn; the moment is written down right before."""
        plan = os.environ.get("SCRIPT_KILL")
        if not plan:
            return
        victim, step, kills, first_settle, settle = plan.split()
        done = len([name for name in os.listdir(os.environ["SCRIPT_STAMPS"]) if name.startswith("death-")])
        wait_s = float(settle if done else first_settle)
        due = self.count >= int(step) and now - self.first_ns >= wait_s * 1e9
        if victim not in ("any", _rank()) or not due or done >= int(kills):
            return
        try:
            fd = os.open(
                os.path.join(os.environ["SCRIPT_STAMPS"], f"death-{done}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL
            )
        except FileExistsError:  # another process was first
            return
        os.write(fd, f"{time.monotonic_ns()} {self.pid}\n".encode())
        os.kill(self.pid, signal.SIGKILL)


def _rank():
    """Return the number of this rank; horovodrun has a name of its own for it."""
    return os.environ.get("RANK") or os.environ.get("HOROVOD_RANK", "0")


def _counted_sleep(steps):
    """Return a `time.sleep` that takes the script's pauses as steps. Pauses of another length are others' own."""

    def sleep(seconds):
        if seconds == float(os.environ.get("SCRIPT_PACE", "0")):
            steps()  # it pauses, too
        else:
            _sleep(seconds)

    sleep.original = _sleep
    return sleep


def _is_filling(frame):
    """Whether one of the nearest callers fills an optimizer's state."""
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code.co_name in _FILLING:
            return True
        frame = frame.f_back
    return False


def _append(name, line):
    fd = os.open(os.path.join(os.environ["SCRIPT_STAMPS"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


if os.environ.get("SCRIPT_STAMPS"):
    if _HOOK == _PAUSES:
        time.sleep = _counted_sleep(_Steps())
    elif _HOOK in sys.modules:  # in a fork of a process that has imported it
        sys.modules[_HOOK].register_optimizer_step_post_hook(_Steps())
    else:
        sys.meta_path.insert(0, _Finder())
