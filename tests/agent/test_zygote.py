"""A zygote spoken to directly, with few modules so that it starts fast; and what agents make of learned ones."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tied
from tests.agent.world import ROOT
from tests.machine_zygote import environment as environment_at_start
from trainmaster.agent.zygote import packets, preload
from trainmaster.agent.zygote.preload import MODULES
from trainmaster.agent.zygote.variables_that_must_match import load_environment
from trainmaster.contract.wire import environment

pytestmark = pytest.mark.processes

WAIT_S = 60.0


class Speaker:
    """One connection to a zygote."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        self.socket = sock

    def expect(self, event: str) -> tuple[dict[str, Any], list[int]]:
        """The next packet of this kind; others before it are dropped."""
        while True:
            received = packets.receive(self.socket)
            assert received is not None, f"the zygote ended instead of saying {event}"
            if received[0]["event"] == event:
                return received

    def hello(self, key: str, load: dict[str, str] | None = None) -> Speaker:
        """Greet; returns a connection to the pristine zygote. `load`: the variables that it was started with."""
        packets.send(self.socket, {"op": "hello", "key": key, "load": _load() if load is None else load})
        return self.introduced()

    def introduced(self) -> Speaker:
        body, fds = self.expect("zygote")
        assert fds, body
        return Speaker(socket.socket(fileno=fds[0]))

    def run(self, entry: dict[str, Any], folder: Path, **env: str) -> tuple[int, str]:
        """Start an entry, wait for its end; returns (wait status, output)."""
        read, write = os.pipe()
        request = {"op": "start", "id": 1, "entry": entry, "env": {**os.environ, **env}, "cwd": str(folder)}
        packets.send(self.socket, {**request, "mark": "test", "fds": ["output"]}, [write])
        os.close(write)
        status = int(self.expect("exit")[0]["status"])
        with os.fdopen(read) as file:
            return status, file.read()


def _load() -> dict[str, str]:
    return load_environment({**os.environ, "PYTHONPATH": ""})


def _machine(path: Path) -> Speaker:
    """A connection to the zygote at `path`, once it serves."""
    deadline = time.monotonic() + WAIT_S
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            assert time.monotonic() < deadline, f"nobody serves at {path}"
            time.sleep(0.05)
            continue
        return Speaker(sock)


@pytest.fixture
def start_zygote(tmp_path: Path) -> Iterator[Callable[[str], Speaker]]:
    started: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(modules: str) -> Speaker:
        ours, theirs = packets.pair()
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'trainer'}:{tmp_path}", MODULES: modules}
        argv = [sys.executable, "-m", "trainmaster.agent.zygote.root", "--fd", str(theirs.fileno())]
        process = tied.popen(argv, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        started.append((process, ours))
        return Speaker(ours)

    yield start
    for process, sock in started:
        sock.close()
        process.wait(10)


def test_a_fork_has_the_modules_and_looks_freshly_started(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    pristine = start_zygote("decimal").hello("k")
    script = tmp_path / "fork.py"
    script.write_text(
        "import sys\nprint('decimal' in sys.modules, __name__, sys.argv)\n"
        "import os, signal, atexit\natexit.register(print, 'bye')\n"
        "print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.environ['MINE'])\n"
        "print(sorted(os.readlink(f'/proc/self/fd/{n}').partition(':')[0] for n in ('0', '1', '2')))\n"
        "sys.exit(7)\n"
    )
    status, output = pristine.run({"kind": "script", "path": "fork.py", "args": ["-a"]}, tmp_path, MINE="yes")
    assert os.waitstatus_to_exitcode(status) == 7
    lines = output.splitlines()
    assert lines[0] == "True __main__ ['fork.py', '-a']"
    assert lines[1] == "True True yes"
    assert lines[2] == "['/dev/null', 'pipe', 'pipe']"
    assert lines[-1] == "bye"


@pytest.mark.parametrize("generator", ["random", "numpy.random"])
def test_forks_draw_different_random_numbers_unless_an_import_has_set_the_seed(
    start_zygote: Callable[[str], Speaker], tmp_path: Path, generator: str
) -> None:
    root = start_zygote("random")
    (tmp_path / "draw.py").write_text(f"import {generator}\nprint({generator}.random())\n")

    def drawn(zygote: Speaker) -> list[str]:
        return [zygote.run({"kind": "script", "path": "draw.py", "args": []}, tmp_path)[1] for _ in range(2)]

    assert len({*drawn(root.hello("k"))}) == 2
    _package(tmp_path, "seeded", f"import {generator}\n{generator}.seed(7)\n")
    _learn(root, [("seeded", "")])
    first, second = drawn(root.introduced())
    assert first == second


def test_forks_draw_different_numbers_from_torch_unless_an_import_has_set_the_seed(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    root = start_zygote("torch")
    (tmp_path / "draw.py").write_text("import torch\nprint(torch.initial_seed(), torch.rand(1).item())\n")

    def drawn(zygote: Speaker) -> list[tuple[str, ...]]:
        outputs = [zygote.run({"kind": "script", "path": "draw.py", "args": []}, tmp_path)[1] for _ in range(2)]
        return [tuple(output.split()) for output in outputs]

    (seed, number), (other_seed, other_number) = drawn(root.hello("k"))
    assert seed != other_seed
    assert number != other_number
    _package(tmp_path, "seeded", "import torch\ntorch.manual_seed(7)\n")
    _learn(root, [("seeded", "")])
    first, second = drawn(root.introduced())
    assert first == second
    assert first[0] == "7"


def _learn(root: Speaker, imports: list[tuple[str, str]], own: tuple[str, ...] = (), **variables: str | None) -> None:
    lesson = {"imports": imports, "variables": variables, "env": {**os.environ, "GONE": "there"}, "own": own}
    packets.send(root.socket, {"op": "learn", "key": "k", **lesson})


def _loaded(zygote: Speaker, folder: Path, *names: str) -> list[str]:
    """Those of `names` that a fork has imported when its script begins."""
    (folder / "loaded.py").write_text(f"import sys\nprint(*(n for n in {names!r} if n in sys.modules))\n")
    _, output = zygote.run({"kind": "script", "path": "loaded.py", "args": []}, folder)
    return output.split()


def _package(folder: Path, name: str, init: str = "", **modules: str) -> None:
    (folder / name).mkdir()
    for module, source in {"__init__": init, **modules}.items():
        (folder / name / f"{module}.py").write_text(source)


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"


def test_a_package_that_starts_a_thread_is_left_out_and_all_that_does_not_need_it_is_learned(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    _package(tmp_path, "threaded", f"import brought_along\n{THREAD}", part="")
    _package(tmp_path, "brought_along")
    _package(tmp_path, "user", "import before_user, threaded.part")
    _package(tmp_path, "before_user")
    _package(tmp_path, "afterwards")
    root = start_zygote("json")
    root.hello("k")
    within = {"user": "", "before_user": "user", "threaded": "user", "brought_along": "threaded"}
    _learn(root, [*within.items(), ("threaded.part", "user"), ("afterwards", "")])
    note = root.expect("note")[0]["message"]
    assert note == "threaded can't be imported in advance: it started a thread"
    learned = root.introduced()
    names = (*within, "threaded.part", "afterwards")
    assert _loaded(learned, tmp_path, *names) == ["before_user", "brought_along", "afterwards"]


def test_a_module_is_left_out_when_it_turns_out_to_import_one_that_does_harm(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    """The rank had imported that one before, so its list doesn't say that the other one needs it."""
    (tmp_path / "harmful.py").write_text(THREAD)
    _package(tmp_path, "needs", "try:\n    import harmful\nexcept BaseException:\n    pass")
    _package(tmp_path, "afterwards")
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("harmful", ""), ("needs", ""), ("afterwards", "")])
    root.expect("note")
    assert root.expect("note")[0]["message"] == "needs can't be imported in advance: it imports harmful"
    assert _loaded(root.introduced(), tmp_path, "harmful", "needs", "afterwards") == ["afterwards"]


def test_a_fork_has_the_variables_that_imports_set_where_they_set_them_alike(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    source = "import os\nos.environ.update(ALIKE='yes', OWN=str(os.getpid()))\nos.environ.pop('GONE', None)"
    _package(tmp_path, "setting", source)
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("setting", "")], ALIKE="yes", OWN="1", GONE=None)
    learned = root.introduced()
    (tmp_path / "show.py").write_text(
        "import os\nprint([os.environ.get(n) for n in ('ALIKE', 'OWN', 'GONE', 'JE_ARROW_MALLOC_CONF')])\n"
    )
    _, output = learned.run({"kind": "script", "path": "show.py", "args": []}, tmp_path, GONE="there")
    assert output.strip() == "['yes', None, None, None]"


@pytest.mark.parametrize(
    "lookup", ["os.environ.get('RANK')", "os.getenv('RANK', '0')", "'RANK' in os.environ", "os.environ['RANK']"]
)
def test_a_module_that_reads_a_variable_of_its_rank_is_left_out_with_all_that_imports_it(
    start_zygote: Callable[[str], Speaker], tmp_path: Path, lookup: str
) -> None:
    source = f"import os\ntry:\n    kept = {lookup}\nexcept KeyError:\n    kept = None\n"
    _package(tmp_path, "library", "import library.part", part=source)
    _package(tmp_path, "afterwards", "import os\nos.environ.get('SHARED')")
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("library", ""), ("library.part", "library"), ("afterwards", "")], own=("RANK",))
    note = root.expect("note")[0]["message"]
    assert note == "library.part can't be imported in advance: it reads RANK, which each rank has its own value of"
    assert _loaded(root.introduced(), tmp_path, "library", "library.part", "afterwards") == ["afterwards"]


@pytest.mark.parametrize(
    ("package", "module", "kept"),
    [
        ("torchmetrics", "prints", "int(os.environ.get('LOCAL_RANK', 0))"),
        ("lightning_fabric", "rank_zero", "_get_rank() or 0"),
    ],
)
def test_a_module_that_only_keeps_its_rank_is_learned_and_each_fork_has_its_own(
    start_zygote: Callable[[str], Speaker], tmp_path: Path, package: str, module: str, kept: str
) -> None:
    name = f"{package}.utilities.{module}"
    _package(tmp_path, package)
    source = (
        "import os\ndef _get_rank():\n"
        "    return int(os.environ['LOCAL_RANK']) if 'LOCAL_RANK' in os.environ else None\n"
        f"def rank_zero_only():\n    pass\nrank_zero_only.rank = {kept}\n"
    )
    _package(tmp_path / package, "utilities", **{module: source})
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [(package, ""), (f"{package}.utilities", ""), (name, "")], own=("LOCAL_RANK",))
    (tmp_path / "show.py").write_text(f"import sys\nprint(sys.modules[{name!r}].rank_zero_only.rank)\n")
    learned = root.introduced()
    entry = {"kind": "script", "path": "show.py", "args": []}
    assert [learned.run(entry, tmp_path, LOCAL_RANK=rank)[1] for rank in ("1", "0")] == ["1\n", "0\n"]


def test_a_module_that_keeps_its_rank_in_an_unknown_way_is_left_out(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    _package(tmp_path, "torchmetrics")
    _package(tmp_path / "torchmetrics", "utilities", prints="import os\nrank = os.environ.get('LOCAL_RANK')\n")
    root = start_zygote("json")
    root.hello("k")
    names = ("torchmetrics", "torchmetrics.utilities", "torchmetrics.utilities.prints")
    _learn(root, [(name, "") for name in names], own=("LOCAL_RANK",))
    note = root.expect("note")[0]["message"]
    assert note.startswith(f"{names[-1]} can't be imported in advance: it keeps its rank in an unknown way: ")
    assert _loaded(root.introduced(), tmp_path, *names) == [*names[:2]]


def test_a_fork_looks_up_variables_without_the_check_of_its_zygote(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    _package(tmp_path, "first")
    (tmp_path / "late.py").write_text("import os\nprint(os.environ.get('RANK'), os.environ.__getitem__.__module__)\n")
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("first", "")], own=("RANK",))
    (tmp_path / "show.py").write_text("import first, late\n")
    _, output = root.introduced().run({"kind": "script", "path": "show.py", "args": []}, tmp_path, RANK="1")
    assert output == "1 os\n"


def test_pyarrow_is_learned_though_it_starts_a_thread_elsewhere(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("pyarrow", "")])
    assert _loaded(root.introduced(), tmp_path, "pyarrow") == ["pyarrow"]


def test_a_script_that_imports_nothing_more_gets_a_zygote_too(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [])
    assert _loaded(root.introduced(), tmp_path, "json") == ["json"]


def test_what_is_told_while_a_candidate_learns_is_learned_next(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    _package(tmp_path, "first")
    _package(tmp_path, "second")
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("first", "")])
    _learn(root, [("first", ""), ("second", "")])
    assert _loaded(root.introduced(), tmp_path, "first", "second") == ["first"]
    assert _loaded(root.introduced(), tmp_path, "first", "second") == ["first", "second"]


@pytest.mark.parametrize("hurry", [False, True])
def test_what_is_told_before_the_first_zygote_has_imported_anything_is_learned_next(
    start_zygote: Callable[[str], Speaker], tmp_path: Path, hurry: bool
) -> None:
    _package(tmp_path, "slow", "import time\ntime.sleep(1)")
    _package(tmp_path, "first")
    root = start_zygote("slow")
    packets.send(root.socket, {"op": "hello", "key": "k", "load": _load()})
    lesson = {"imports": [("first", "")], "variables": {}, "env": dict(os.environ)}
    packets.send(root.socket, {"op": "learn", "key": "k", **lesson, "hurry": hurry})
    root.introduced()
    assert _loaded(root.introduced(), tmp_path, "slow", "first") == ["slow", "first"]


def test_a_module_that_did_harm_in_another_pod_is_not_tried_again(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    _package(tmp_path, "harmful", f"open({str(tmp_path / 'tried')!r}, 'w')")
    _package(tmp_path, "first")
    root = start_zygote("json")
    root.hello("k")
    lesson = {"imports": [("harmful", ""), ("first", "")], "variables": {}, "env": dict(os.environ)}
    packets.send(root.socket, {"op": "learn", "key": "k", **lesson, "barred": ["harmful"]})
    body, fds = root.expect("zygote")
    assert body["barred"] == ["harmful"]
    assert _loaded(Speaker(socket.socket(fileno=fds[0])), tmp_path, "harmful", "first") == ["first"]
    assert not (tmp_path / "tried").exists()


def test_what_was_imported_for_all_is_forked_when_a_list_can_not_be_learned(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    source = "import os, sys\nos.register_at_fork(after_in_child=lambda: os._exit(7))"
    _package(tmp_path, "ends_forks", source)
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("ends_forks", "")])
    assert "what ranks import can't be imported in advance: a trial fork" in root.expect("note")[0]["message"]
    assert _loaded(root.introduced(), tmp_path, "json", "ends_forks") == ["json"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import socket\nkept = socket.socket()", "opened a socket"),
        ("import os\nos.abort()", "ended while importing"),
        ("kept = open('/dev/kmsg', 'wb')", "opened /dev/kmsg"),
    ],
)
def test_a_module_that_a_fork_would_not_survive_is_named_and_left_out(
    start_zygote: Callable[[str], Speaker], tmp_path: Path, body: str, reason: str
) -> None:
    if "/dev/kmsg" in body and not os.access("/dev/kmsg", os.W_OK):
        pytest.skip("this machine has no /dev/kmsg to open")
    (tmp_path / "harmful.py").write_text(body + "\n")
    root = start_zygote("json")
    root.hello("k")
    _learn(root, [("harmful", ""), ("decimal", "")])
    assert f"harmful can't be imported in advance: it {reason}" in root.expect("note")[0]["message"].replace(
        "the candidate", "it"
    )
    root.introduced()


def test_a_module_that_cannot_be_imported_is_told_and_does_no_harm(start_zygote: Callable[[str], Speaker]) -> None:
    root = start_zygote("json,no_such_module")
    packets.send(root.socket, {"op": "hello", "key": "", "load": _load()})
    assert "no_such_module was not imported in advance" in root.expect("note")[0]["message"]


def test_an_image_without_torch_has_forks_of_what_its_ranks_import(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Hides:\n    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n            raise ModuleNotFoundError('there is no torch')\n"
        "sys.meta_path.insert(0, Hides())\n"
    )
    _package(tmp_path, "framework")
    root = start_zygote("torch,json")
    root.hello("k")
    _learn(root, [("framework", "")])
    assert _loaded(root.introduced(), tmp_path, "framework", "torch") == ["framework"]


def test_an_image_with_a_broken_torch_executes_its_ranks(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is missing')\n")
    root = start_zygote("torch,json")
    packets.send(root.socket, {"op": "hello", "key": "k", "load": _load()})
    root.expect("note")  # it was not imported in advance
    assert "torch can't be imported: ImportError: libcudart is missing" in root.expect("note")[0]["message"]
    assert root.expect("zygote")[0]["kind"] == "none"


def _greet(root: Speaker, **variables: str) -> str:
    """Which zygote an agent is given whose ranks have these variables that are read at load."""
    packets.send(root.socket, {"op": "hello", "key": "k", "load": {**_load(), **variables}})
    return str(root.expect("zygote")[0]["kind"])


def test_variables_that_no_loaded_library_reads_do_not_rule_out_forks(start_zygote: Callable[[str], Speaker]) -> None:
    root = start_zygote("json")
    assert _greet(root, KMP_AFFINITY="granularity=fine,compact,1,0", KMP_BLOCKTIME="1") == "pristine"
    assert _greet(root, KMP_BLOCKTIME="1", GOMP_SPINCOUNT="1") == "none"


def test_variables_that_a_loaded_library_reads_rule_out_forks(
    start_zygote: Callable[[str], Speaker], tmp_path: Path
) -> None:
    (tmp_path / "libiomp5.so").write_bytes(b"x")
    path = str(tmp_path / "libiomp5.so")
    source = f"import mmap\nfile = open({path!r}, 'rb')\nlibrary = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    (tmp_path / "loads.py").write_text(source)
    assert _greet(start_zygote("loads"), KMP_BLOCKTIME="1") == "none"


def test_the_children_of_an_agent_that_leaves_are_ended(start_zygote: Callable[[str], Speaker], tmp_path: Path) -> None:
    pristine = start_zygote("json").hello("k")
    (tmp_path / "wait.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    read, write = os.pipe()
    entry = {"kind": "script", "path": "wait.py", "args": []}
    request = {"op": "start", "id": 1, "entry": entry, "env": dict(os.environ), "cwd": str(tmp_path), "mark": "m"}
    packets.send(pristine.socket, {**request, "fds": ["output"]}, [write])
    os.close(write)
    with os.fdopen(read) as output:
        assert output.readline() == "up\n"
        pristine.socket.close()
        assert output.read() == ""  # the end of the file: nobody holds the pipe any more


def test_a_signal_reaches_only_the_ranks_it_is_for(start_zygote: Callable[[str], Speaker], tmp_path: Path) -> None:
    pristine = start_zygote("json").hello("k")
    (tmp_path / "wait.py").write_text("import signal\nsignal.pause()\n")
    for id in (1, 2):
        entry = {"kind": "script", "path": "wait.py", "args": []}
        request = {"op": "start", "id": id, "entry": entry, "env": dict(os.environ), "cwd": str(tmp_path)}
        packets.send(pristine.socket, {**request, "mark": str(id), "fds": []})
    pristine.expect("born")
    pid = int(pristine.expect("born")[0]["pid"])
    packets.send(pristine.socket, {"op": "signal", "ids": [1], "signal": int(signal.SIGKILL)})
    body, _ = pristine.expect("exit")
    assert (body["id"], body["status"]) == (1, int(signal.SIGKILL))
    os.kill(pid, 0)


def test_our_own_loop_imports_nothing_that_the_zygote_has_not_imported(machine_zygote: Path, tmp_path: Path) -> None:
    """So a pod that has never trained, a spare that steps in, starts its ranks as fast as one that has."""
    assert MODULES not in os.environ, "the machine's zygote has imported what a zygote imports by default"
    pristine = _machine(machine_zygote).hello("own loop", load_environment(environment_at_start()))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    (tmp_path / "train.py").write_text(
        "import sys\nbefore = set(sys.modules)\nfrom trainmaster.train.loop import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, sorted(set(sys.modules) - before))\n"
    )
    training = {
        "model": {"name": "gpt", "options": {"layers": 1, "heads": 2, "width": 16, "context": 16}},
        "data": {"source": "text", "path": str(tmp_path / "text")},
        "batch": {"global": 2},
        "parallelism": {"dpShard": 1},
        "checkpoint": {"every": 2},
    }
    entry = {"kind": "script", "path": "train.py", "args": []}
    for round, steps in ((1, 4), (2, 8)):  # the second resumes
        env = {
            environment.CONFIG: json.dumps({**training, "steps": steps}),
            environment.CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
            environment.RAM_DIR: str(tmp_path / "memory"),
            environment.RAM_BUDGET: str(1 << 30),
            environment.ROUND: str(round),
            "OMP_NUM_THREADS": "1",
        }
        status, output = pristine.run(entry, tmp_path, **env)
        assert (os.waitstatus_to_exitcode(status), output.splitlines()[-1]) == (0, "0 []"), output


def test_memory_stays_as_it_is_while_a_rank_waits_for_the_zygote_and_in_forks_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collapsed: list[bool] = []
    monkeypatch.setattr(preload.hugepages, "collapse", lambda stop: collapsed.append(stop()))
    monkeypatch.setattr(preload.gc, "freeze", lambda: None)
    monkeypatch.setattr(preload, "_on_huge_pages", True)
    preload.freeze()
    preload.freeze(hurried=lambda: True)
    preload.freeze()
    assert collapsed == [False, True], "the third one is of a fork"


def test_nothing_is_collected_during_imports_and_a_threshold_that_a_module_sets_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gc.get_threshold()
    _package(tmp_path, "looks_on", "import gc\nthreshold = gc.get_threshold()[0]\n")
    _package(tmp_path, "decides", "import gc\ngc.set_threshold(7, 8, 9)\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert preload.preload(["looks_on"]) == {}
        assert (sys.modules["looks_on"].threshold, gc.get_threshold()) == (0, before)
        assert preload.preload(["decides"]) == {}
        assert gc.get_threshold() == (7, 8, 9)
    finally:
        gc.set_threshold(*before)
        for name in ("looks_on", "decides"):
            sys.modules.pop(name, None)
