"""Observes a script from inside its process, without any change of the script.

Steps are counted by torch's global optimizer-step hooks, which are set when torch is imported. Imports are reported to
the agent (see `import_log`): a zygote may import only modules that the script's own changes of the environment cannot
affect.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from trainmaster.contract.wire import channel, environment
from trainmaster.contract.wire.progress_record import IMPORTING, LOADED, SIZE, Phase, ProgressRecord
from trainmaster.host import rank_memory
from trainmaster.host.step_timing import Rhythm
from trainmaster.rank import (
    collective_counter,
    framework_joining,
    import_log,
    optimizer_hooks,
    optimizer_steps,
    script_saves,
    stacks,
    step_recording,
)

_LEARN_AFTER = 3  # steps: by then lazily imported modules are there
_PER_PACKET = 500  # imports, well below the limit of a packet

_observer: _Observer | None = None


def install(*, own_loop: bool) -> None:
    """Start to observe this process. With `own_loop` it writes its progress itself, and only its imports are
    reported."""
    global _observer
    if environment.PROGRESS_FD not in os.environ:
        return
    _observer = _Observer(own_loop)
    _observer.watch_imports()
    for name in _observer.hooked:
        _observer.loaded(name)


def join() -> None:
    """Let this rank meet the others, as far as its framework needs that before the script begins."""
    framework = framework_joining.of_this_rank()
    if framework is not None:
        framework_joining.join(framework)
        if _observer is not None:
            _observer.imports.overlook()


def give_way(reclaim: Callable[[], bool]) -> bool:
    """Write nothing from now on, because another program may be the rank's. Return True if this one was observed.

    When this process has imported a framework, or after `take_back`, it continues if `reclaim` returns True.
    """
    if _observer is None or _observer.yielded():
        return False
    _observer.reclaim = reclaim
    return True


def take_back() -> None:
    """Note that a program that this one gave way to has ended.

    It may be called in a fork, such as a worker that starts programs. The record is not for it.
    """
    if _observer is None or _observer.forked:
        return
    if _observer.reclaim is not None and _observer.reclaim():
        _observer.reclaim = None


def step() -> int:
    """Return the number of steps that this process has completed, 0 if they are not counted."""
    return _observer.progress.step if _observer is not None else 0


def has_joined() -> bool:
    """Return True if this process was seen in its round's rendezvous or in a step."""
    progress = _observer.progress if _observer is not None else None
    return progress is not None and bool(progress.rendezvous_ns or progress.first_step_ns)


class _Observer:
    def __init__(self, own_loop: bool) -> None:
        self.own_loop = own_loop
        self.hooked: dict[str, list[framework_joining.Loaded]] = {n: [partial(h, self)] for n, h in _HOOKED.items()}
        framework = framework_joining.of_this_rank()
        for name, hook in framework_joining.hooks(framework, self) if framework is not None else ():
            self.hooked.setdefault(name, []).append(hook)
        self.reclaim: Callable[[], bool] | None = None  # while it gives way
        self.forked = False  # in a child of the process that is watched
        os.register_at_fork(after_in_child=self._leave)
        self.imports = import_log.ImportLog(self._tell_imports, self.loaded, self._importing)
        self._steps = optimizer_steps.OptimizerSteps()
        self._optimizers = optimizer_hooks.OptimizerHooks(self, self._steps)
        self._calls = 0
        self._loaded = False  # a file that the job may have saved, by torch.load, before the first step
        self._forward: Any = None
        fd = int(os.environ[environment.PROGRESS_FD])
        self._channel_fd = int(os.environ.get(environment.CHANNEL_FD, "-1"))
        self._opened = ProgressRecord.opened
        self._record = ProgressRecord(mmap.mmap(fd, SIZE), fd)
        self.progress = self._record.read()
        stacks.listen(fd)
        self._rhythm = Rhythm()
        self.progress.started_ns = self.progress.imported_ns = time.monotonic_ns()
        self.progress.phase = Phase.START
        if not own_loop:
            self._publish()

    def watch_imports(self) -> None:
        """Observe the imports of this process.

        A script that imports nothing new can be forked, too, so an empty list is reported first.
        """
        import_log.watch(self.imports)
        if not self.own_loop:
            self._tell_imports([])

    def loaded(self, name: str) -> None:
        """Install the hooks of a module that was loaded."""
        if name in self.hooked and name in sys.modules:
            for hook in self.hooked[name]:
                hook(sys.modules[name])

    def met(self) -> None:
        """See `frameworks.framework.Watch.met`."""
        if not self.yielded():
            self.progress.rendezvous_ns = self.progress.rendezvous_ns or time.monotonic_ns()
            self._enter(Phase.BUILD)

    def building(self) -> None:
        """See `frameworks.framework.Watch.building`."""
        if not self.yielded() and self.progress.phase < Phase.BUILD:
            self._enter(Phase.BUILD)

    def completed(self, step: int, *, resumed: int = -1) -> None:
        """See `frameworks.framework.Watch.completed`. An injected fault of this step takes effect at its end."""
        if not self.yielded():
            optimizer_hooks.strike(step, after=self.progress.step or resumed)
            if resumed >= 0:
                self.progress.resumed_step = resumed
            self._stepped(step, waited_ns=lambda _: 0)
        self._count_call()

    def one_step(self, owner: Any, count: optimizer_steps.Count) -> contextlib.AbstractContextManager[None]:
        """See `frameworks.framework.Watch.one_step`. An injected fault takes effect before the first optimizer."""
        return self._optimizers.one_step(owner, count)

    def took(self, owner: Any, count: optimizer_steps.Count) -> None:
        """Count a step that an optimizer, or the owner of several, has taken."""
        if not self.yielded():
            first = self._steps.base < 0
            step = self._steps.take(owner, count)
            if first:
                self._note_start()
            self._stepped(step, waited_ns=_waited_ns)
        self._count_call()

    def hook_optimizer(self, module: Any) -> None:
        self._optimizers.hook_steps(module)

    def hook_filling(self, module: Any) -> None:
        self._optimizers.hook_filling(module)

    def hook_rendezvous(self, module: Any) -> None:
        collective_counter.watch(module, self._record, int(os.environ.get("WORLD_SIZE", "1")))
        if self.own_loop:
            return
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            self._enter(Phase.RENDEZVOUS)
            hook = sys.excepthook
            result = original(*args, **kwargs)
            sys.excepthook = hook  # torch's puts the rank before each line of a traceback, which the agent does, too
            self.progress.rendezvous_ns = time.monotonic_ns()
            self._enter(Phase.BUILD)
            return result

        script_saves.put_in_place(module, "init_process_group", init_process_group)

    def hook_forward(self, module: Any) -> None:
        if self.own_loop:
            return
        self._forward = module.register_module_forward_pre_hook(self._began_forward)
        original = module.Module.eval

        @functools.wraps(original)
        def eval_(model: Any) -> Any:
            if _is_compiling(module.torch):
                return original(model)
            if model.training and self.progress.phase == Phase.STEP and _in_main_thread():
                self._enter(Phase.EVAL)  # until the next step of an optimizer
            return original(model)

        module.Module.eval = eval_

    def hook_compiler(self, module: Any) -> None:
        """Let torch's compiler see no hook of ours in a module that it compiles.

        It cannot compile such a hook, so `fullgraph=True` would fail. A first forward that is compiled begins with its
        compilation, where the hook is removed.
        """
        handler = getattr(module, "CompilationCallbackHandler", None)
        original = getattr(handler, "run_start_callbacks", None)
        if handler is None or original is None or self.own_loop:
            return

        @functools.wraps(original)  # torch._dynamo.reset() forgets registered callbacks
        def run_start_callbacks(*args: Any, **kwargs: Any) -> Any:
            self._began_forward()
            return original(*args, **kwargs)

        handler.run_start_callbacks = run_start_callbacks

    def hook_compiled_module(self, module: Any) -> None:
        """Remove the hook of the first forward when a module is to be compiled: the compiler warns of such hooks."""
        if self.own_loop:
            return
        original = module.OptimizedModule.__init__

        @functools.wraps(original)
        def init(compiled: Any, *args: Any, **kwargs: Any) -> None:
            self._unhook_forward()
            original(compiled, *args, **kwargs)

        module.OptimizedModule.__init__ = init

    def hook_save(self, module: Any) -> None:
        if self.own_loop:
            return
        original = module.save

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            before = self.progress.phase
            if before not in (Phase.STEP, Phase.EVAL) or not _in_main_thread():
                return original(*args, **kwargs)
            self._enter(Phase.SAVE)
            try:
                result = original(*args, **kwargs)
                self.progress.last_save = self.progress.step
                return result
            finally:
                self._enter(Phase(before))

        script_saves.put_in_place(module, "save", save)
        self._hook_load(module)

    def _hook_load(self, module: Any) -> None:
        original = module.load

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            file = args[0] if args else kwargs.get("f")
            self._loaded = self._loaded or (not self.progress.first_step_ns and script_saves.may_be_a_save(file))
            return original(*args, **kwargs)

        script_saves.put_in_place(module, "load", load)

    def _began_forward(self, *_: Any) -> None:
        self._unhook_forward()
        if not (self.progress.built_ns or self.progress.first_step_ns):
            self.progress.built_ns = self.progress.loaded_ns = time.monotonic_ns()
            self._enter(Phase.STEP)

    def _unhook_forward(self) -> None:
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    def _stepped(self, step: int, waited_ns: Callable[[int], int]) -> None:
        progress = self.progress
        now = time.monotonic_ns()
        if step > progress.step:
            progress.step = progress.device_step = step
            self._rhythm.stepped(progress, now, waited_ns(now))
        progress.phase = Phase.STEP
        progress.first_step_ns = progress.first_step_ns or now
        rank_memory.weigh(progress)
        self._publish(now)
        step_recording.completed(step, self._enter)

    def _count_call(self) -> None:
        self._calls += 1
        if self._calls == _LEARN_AFTER and not self.forked:
            self._tell_imports([], settled=True)

    def _note_start(self) -> None:
        """Note after the first step of this process which step it began after, if an optimizer knows it."""
        if self._steps.counted:
            self.progress.resumed_step = self._steps.base
        elif self._loaded:
            self.progress.flags |= LOADED

    def yielded(self) -> bool:
        """Return True if this process must not write progress.

        That is so if the script writes it itself, if this is a forked worker, or if another program is the rank's.
        """
        if self.reclaim is not None and not self.forked and framework_joining.trains():
            take_back()
        return self.own_loop or self.forked or ProgressRecord.opened > self._opened or self.reclaim is not None

    def _leave(self) -> None:
        self.forked = True

    def _enter(self, phase: Phase) -> None:
        self.progress.phase = phase
        self._publish()

    def _publish(self, now: int = 0) -> None:
        if not self.yielded():
            now = now or time.monotonic_ns()
            self._rhythm.beat(self.progress, now)
            self.progress.beat_ns = now
            self._record.write(self.progress)

    def _importing(self, busy: bool) -> None:
        """Note that the main thread begins or has ended an import. Until the first milestone its imports count as
        one."""
        progress = self.progress
        progress.flags = progress.flags | IMPORTING if busy else progress.flags & ~IMPORTING
        if not (progress.rendezvous_ns or progress.built_ns or progress.first_step_ns):
            progress.imported_ns = progress.started_ns + self.imports.seconds_ns
        self._publish()

    def _tell_imports(self, imports: list[tuple[str, str]], *, settled: bool = False) -> None:
        """Report imports. `settled`: enough steps are done that the script will hardly import more."""
        fields = {"variables": dict(self.imports.variables), "forkable": self.imports.forkable, "settled": settled}
        # The agent may be gone, and a script may close what it didn't open, or has no channel: its imports go on.
        with (
            contextlib.suppress(OSError, ValueError),
            contextlib.closing(channel.Channel.open(os.dup(self._channel_fd))) as link,
        ):
            for start in range(0, max(len(imports), 1), _PER_PACKET):
                link.send(channel.MODULES, {"imports": imports[start : start + _PER_PACKET], **fields})


_HOOKED = {
    "torch.optim.optimizer": _Observer.hook_optimizer,
    "torch.distributed.distributed_c10d": _Observer.hook_rendezvous,
    "torch.nn.modules.module": _Observer.hook_forward,
    "torch._dynamo.callback": _Observer.hook_compiler,
    "torch._dynamo.eval_frame": _Observer.hook_compiled_module,
    "torch.serialization": _Observer.hook_save,
    **dict.fromkeys(optimizer_hooks.FILLING, _Observer.hook_filling),
}


def _is_compiling(torch: Any) -> bool:
    """Return True while torch's compiler looks through the function that calls this one.

    The compiler takes this answer for a constant, and does not look at what is done otherwise, which it could not
    compile.
    """
    ask = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return ask is not None and ask()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _waited_ns(now: int) -> int:
    """Return the nanoseconds up to now in which this process did nothing.

    On CPU they come from the main thread's own clock, which also sees waits in C++. A thread that drives a device is
    busy or idle for other reasons, so with a device only collectives are counted.
    """
    torch = sys.modules["torch"]
    return collective_counter.waited_ns() if torch.cuda.is_initialized() else now - time.thread_time_ns()
