"""What zygotes import in advance: the pristine one a list for all jobs, a candidate what the ranks of a job needed.

A candidate is used only if it can still be forked safely. This is the case if no import opened a socket, a device or a
further thread, if no module has read a variable that belongs to one rank or one round, and if a trial fork that runs an
OpenMP and a BLAS region ends in time (a thread pool that was used hangs after a fork). The candidate checks after each
module, nested ones too, so that the module that did the harm is known.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from typing import Any, NoReturn

from trainmaster.agent.zygote import modules_that_read_the_rank
from trainmaster.agent.zygote.import_plan import packages
from trainmaster.host import hugepages, processes
from trainmaster.rank import import_log

MODULES = "TRAINMASTER_ZYGOTE_MODULES"  # comma-separated, imported by the pristine zygote; "": fork nothing
DEFAULT_MODULES = (
    "torch,torch.distributed,torch.distributed.fsdp,torch.distributed.checkpoint,torch._dynamo,"
    "trainmaster.train.loop,trainmaster.data.token_windows,trainmaster.models.gpt,trainmaster.models.moe_router_and_balance,"
    "trainmaster.models.initialization,trainmaster.checkpoint.state.reshard_tensors,encodings.idna"
)
TRIAL_S = 20.0

GENERATORS = ("random", "numpy.random")
"""Modules with a generator that each process seeds for itself, unless an import seeds it."""

FORK_SAFE = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy alone would start a thread
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow would, too
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the default check calls cuInit, which poisons forks
}
"""Variables with which a zygote can import libraries and still be forked. Ranks get them only if the job sets them."""


@dataclass
class Refusal:
    """Why a candidate cannot be forked. `stack` has the imports it was in, innermost first; empty if no import is to
    blame."""

    stack: list[str]
    reason: str


@dataclass
class Outcome:
    """What a candidate found. `refused` is None if it may be used."""

    imported: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    refused: Refusal | None = None


def names_of_pristine() -> list[str]:
    """Return the names that are imported before any job is known."""
    return [name for name in os.environ.get(MODULES, DEFAULT_MODULES).split(",") if name]


seed_of_torch: int | None = None
"""The seed that torch's generator drew when torch was imported; None without torch."""


def preload(names: Iterable[str]) -> dict[str, str]:
    """Import each of `names` that can be imported. Return the others with the reasons.

    If torch cannot be imported, the names after it are not tried.
    """
    global seed_of_torch
    failed: dict[str, str] = {}
    with _without_collections():
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001  a module that can't be imported is reported, never fatal
                failed[name] = f"{type(error).__name__}: {error}"
            if "torch" in failed:
                break
            if seed_of_torch is None and "torch" in sys.modules:
                seed_of_torch = sys.modules["torch"].initial_seed()
    return failed


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from looking through modules while they are imported, which takes an eighth of
    the time and finds next to nothing; `freeze` collects it. A threshold that an import sets stays."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


def has_drawn_seed_of_torch() -> bool:
    """Return True if torch is here and no import has set the seed of its generator: it drew one, as in each process
    that imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.initial_seed() == seed_of_torch)


seeded: set[str] = set()
"""Those of GENERATORS to which a learned import has given a seed, as it does in each process that imports it."""

state_of_random: Any = None
"""The state of the generator of `random` after imports that have seeded it, which seeds itself again in each fork."""

_seed_functions: dict[str, tuple[Any, Any]] = {}
"""The module and its own function `seed`, by the module's name, while that function is replaced."""


@contextlib.contextmanager
def _seeds() -> Iterator[None]:
    """Note in `seeded` which generators get a seed within this context, and keep the state that forks lose."""
    global state_of_random
    for name in GENERATORS:
        _note_seeds(name)
    try:
        yield
    finally:
        while _seed_functions:
            name, (module, original) = _seed_functions.popitem()
            module.seed = original
            if name == "random" and name in seeded:
                state_of_random = module.getstate()


def _note_seeds(name: str) -> None:
    """Note when the generator of a module gets a seed, if the module is there."""
    module: Any = sys.modules.get(name)
    if name in _seed_functions or not hasattr(module, "seed"):
        return
    original = module.seed
    _seed_functions[name] = module, original

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        is_given = any(value is not None for value in (*args, *kwargs.values()))
        (seeded.add if is_given else seeded.discard)(name)
        return original(*args, **kwargs)

    module.seed = seed


def is_absent(package: str) -> bool:
    """Return True if this image does not have a package at all, as with frameworks other than torch."""
    try:
        return importlib.util.find_spec(package) is None
    except ModuleNotFoundError:  # a finder of the image's own says so
        return True


_on_huge_pages = True  # this process, and with it each that is forked from it


def freeze(hurried: Callable[[], bool] = lambda: False) -> None:
    """Make forks cheap: objects out of the collector's sight, memory on huge pages.

    Huge pages take more than a second of CPU and save 4 ms of each fork. When `hurried()` is true, a rank waits, and
    the rest of the memory stays as it is. It does in forks of this process, too: they would copy what they share with
    it.
    """
    global _on_huge_pages
    gc.collect()
    gc.freeze()
    if _on_huge_pages:
        hugepages.collapse(hurried)
        _on_huge_pages = not hurried()


def learn(
    names: Sequence[str],
    barred: Collection[str],
    own: Collection[str],
    diary: int,
    refuse: Callable[[Refusal], NoReturn],
) -> Outcome:
    """Import `names` in this candidate and judge it.

    diary: a descriptor that holds the module being loaded. barred: modules whose import would do harm. own: variables
    that each rank has its own value of. refuse: is called, instead of a return, as soon as an import did harm or is
    about to import a barred module.
    """
    outcome = Outcome()
    guard = _Guard(frozenset(barred), frozenset(own), diary, refuse)
    end = import_log.watch(guard)
    with _reads(guard.read), _seeds():
        for name in names:
            if name not in sys.modules:
                outcome.failed.update(preload([name]))
                outcome.imported += name not in outcome.failed
                guard.look([name], devices=True)
    end()
    if outcome.imported:  # else all memory is the parent's, which has done that
        freeze()
    reason = _trial()
    if reason:
        outcome.refused = Refusal([], reason)
    return outcome


@contextlib.contextmanager
def _reads(read: Callable[[str], None]) -> Iterator[None]:
    """Call `read` with the name of each variable that is looked up in os.environ, whether it is there or not."""
    kind: Any = type(os.environ)
    look_up = kind.__getitem__

    def __getitem__(environ: Any, name: str) -> Any:
        read(name)
        return look_up(environ, name)

    kind.__getitem__ = __getitem__
    try:
        yield
    finally:
        kind.__getitem__ = look_up


class _Guard:
    """Checks after each module that was loaded whether its import did harm, and which variables it reads."""

    def __init__(
        self, barred: frozenset[str], own: frozenset[str], diary: int, refuse: Callable[[Refusal], NoReturn]
    ) -> None:
        self._barred = barred
        self._own = own
        self._diary = diary
        self._refuse = refuse
        self._stack: list[str] = []
        self._threads = processes.thread_count()
        self._files = _files()
        self._devices = _devices()

    def begun(self, spec: ModuleSpec) -> None:
        if not self._barred.isdisjoint((spec.name, *packages(spec.name))):
            self._refuse(Refusal(self._stack[::-1], f"it imports {spec.name}"))
        self._stack.append(spec.name)
        self._note(spec.name)

    def ended(self, spec: ModuleSpec, *, failed: bool) -> None:
        self.look(self._stack[::-1], devices=(spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES)))
        if spec.name in modules_that_read_the_rank.KNOWN and not failed:
            self._try_to_read_again(spec.name)
        if spec.name in GENERATORS:
            _note_seeds(spec.name)
        self._stack.pop()
        self._note(self._stack[-1] if self._stack else "")

    def read(self, name: str) -> None:
        """Refuse the candidate if a module reads a variable that each rank has its own value of."""
        if name in self._own and self._stack and self._stack[-1] not in modules_that_read_the_rank.KNOWN:
            self._refuse(Refusal(self._stack[::-1], f"it reads {name}, which each rank has its own value of"))

    def _try_to_read_again(self, name: str) -> None:
        try:
            modules_that_read_the_rank.read_again({name: sys.modules[name]})
        except Exception as error:  # noqa: BLE001  a version that is made in another way may do anything
            reason = f"it keeps its rank in an unknown way: {type(error).__name__}: {error}"
            self._refuse(Refusal(self._stack[::-1], reason))

    def look(self, stack: list[str], *, devices: bool) -> None:
        """Refuse the candidate if an import did harm. With `devices`, mapped devices are checked, too, in a
        millisecond."""
        reason = self._harm(devices=devices)
        if reason:
            self._refuse(Refusal(stack, reason))

    def _note(self, name: str) -> None:
        os.pwrite(self._diary, name.encode()[:200].ljust(200), 0)

    def _harm(self, *, devices: bool) -> str:
        """Return what was done that a fork would not survive, or ""."""
        if processes.thread_count() > self._threads:
            return "it started a thread"
        for thing in sorted((_files() - self._files) | (_devices() - self._devices if devices else set())):
            if thing.startswith("socket:"):
                return "it opened a socket"
            if thing.startswith("/dev/") and thing not in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
                return f"it opened {thing}"
        return ""


def replayable(
    before: Mapping[str, str], after: Mapping[str, str], seen: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the variables that imports changed here as they did in the rank (`seen`): what a fork must have, since it
    imports nothing. A value that came out otherwise belongs to the process (its temporary folder, for instance)."""
    changed = {name: after.get(name) for name in {*before, *after} if before.get(name) != after.get(name)}
    return {name: value for name, value in changed.items() if name in seen and seen[name] == value}


def _files() -> set[str]:
    """Open files by what they lead to."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def _devices() -> set[str]:
    """Return the devices that are mapped into memory."""
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.partition("/dev/")
            if path[1]:
                found.add("/dev/" + path[2].strip())
    return found


def _trial() -> str:
    """Fork once and compute; "" when the fork ended well in time, else what was wrong."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _compute()
            code = 0
        finally:
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    try:
        deadline = time.monotonic() + TRIAL_S
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return "" if status == 0 else f"a trial fork ended with wait status {status}"
            _wait_readable(pidfd, deadline - time.monotonic())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return f"a trial fork did not compute within {TRIAL_S:.0f} s"
    finally:
        os.close(pidfd)


def _wait_readable(fd: int, timeout_s: float) -> None:
    select = importlib.import_module("select")
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(timeout_s, 0) * 1000)


def _compute() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(max(2, processes.available_cpus()))
        a = torch.ones(1 << 20)
        assert float((a + a).sum()) == 2.0 * (1 << 20)  # an OpenMP region
        m = torch.ones(256, 256)
        assert float((m @ m)[0, 0]) == 256.0  # a BLAS region
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        m = numpy.ones((256, 256))
        assert float((m @ m)[0, 0]) == 256.0
