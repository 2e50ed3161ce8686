"""The kubelet of the local world, with real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.examples import pod
from tests.cluster.local_world import HELLO, SLEEP, Local, local_world, python_path
from trainmaster_operator.cluster.port import POD, NotFound
from trainmaster_operator.local.process_kubelet import LOST
from trainmaster_operator.local.process_tree import started_with, table

pytestmark = pytest.mark.processes


def run(
    test: Callable[[Local], Awaitable[None]],
    zygote: list[str] | None = None,
    shared: Path | None = None,
    options: Sequence[str] = (),
) -> None:
    async def inside() -> None:
        async with local_world(zygote, shared, options) as world:
            await test(world)

    asyncio.run(inside())


def test_a_pod_runs_to_its_end_and_its_output_is_in_its_log() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", "import sys; print('out'); print('err', file=sys.stderr)"))
        ended = await world.phase("a", "Succeeded")
        state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        assert state["exitCode"] == 0
        assert sorted((world.out / "logs" / "a.log").read_text().split()) == ["err", "out"]
        await world.cluster.delete(POD, "default", "a")
        with pytest.raises(NotFound):
            await world.cluster.get(POD, "default", "a")

    run(test)


def test_the_kubelet_runs_before_its_pods_where_that_is_allowed() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)

    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"))
        await world.phase("a", "Succeeded")
        assert int((world.out / "logs" / "a.log").read_text()) == mine
        kubelet = os.getpriority(os.PRIO_PROCESS, world.kubelet.pid)
        assert kubelet == (-10 if os.geteuid() == 0 else mine)

    run(test)


def test_a_pod_knows_who_it_is_and_nothing_of_the_store() -> None:
    script = """
import json, os, sys
path = os.environ["TRAINMASTER_TOKEN_FILE"]
facts = dict(os.environ, MODE=oct(os.stat(path).st_mode), TOKEN=open(path).read(), CWD=os.getcwd())
facts["GROUP"] = os.getpgid(0) == os.getsid(0) == os.getpid()
print(json.dumps(facts))
"""

    async def test(world: Local) -> None:
        made = await world.cluster.create(POD, world.pod("a", script, workingDir=str(world.folder)))
        ended = await world.phase("a", "Succeeded")
        facts = json.loads((world.out / "logs" / "a.log").read_text())
        assert facts["TRAINMASTER_POD_UID"] == made["metadata"]["uid"]
        assert facts["TRAINMASTER_POD_IP"] == ended["status"]["podIP"] == "127.0.0.1"
        assert facts["TRAINMASTER_ZYGOTE"] == str(world.run_dir / "zygote.sock")
        assert facts["TMPDIR"].startswith(str(world.run_dir / "pods"))
        assert facts["MODE"] == oct(stat.S_IFREG | 0o600)
        assert hashlib.sha256(facts["TOKEN"].encode()).hexdigest() == ended["status"]["tokenSha256"]
        assert facts["CWD"] == str(world.folder)
        assert facts["GROUP"]
        assert "SECRET" not in facts
        assert not any("store.sock" in str(value) for value in facts.values())

    run(test)


def test_a_pod_waits_for_the_devices_of_one_that_ends() -> None:
    script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"

    async def test(world: Local) -> None:
        for name in ("a", "b"):
            await world.cluster.create(POD, world.pod(name, SLEEP))
            await world.phase(name, "Running")
        await world.cluster.create(POD, world.pod("c", script))
        await world.cluster.delete(POD, "default", "b")
        await world.phase("c", "Succeeded")
        assert (world.out / "logs" / "c.log").read_text() == "7\n"
        assert (await world.cluster.get(POD, "default", "a"))["status"]["phase"] == "Running"

    run(test, options=("--devices", "4,7", "--devices-per-pod", "1"))


def test_a_pod_that_is_deleted_while_it_waits_for_devices_takes_none() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", SLEEP))
        await world.phase("a", "Running")
        await world.cluster.create(POD, world.pod("b", SLEEP))
        await world.cluster.delete(POD, "default", "b")
        await world.cluster.create(POD, world.pod("c", "pass"))
        await world.cluster.delete(POD, "default", "a")
        await world.phase("c", "Succeeded")

    run(test, options=("--devices", "4", "--devices-per-pod", "1"))


def test_a_failed_pod_tells_exit_code_signal_and_last_words() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("code", "import sys; sys.exit('the last words')"))
        killed = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        await world.cluster.create(POD, world.pod("signal", killed))
        wrote = "import os; open(os.environ['TRAINMASTER_TERMINATION_LOG'], 'w').write('verdict'); os._exit(3)"
        await world.cluster.create(POD, world.pod("log", wrote))

        async def state(name: str) -> tuple[int, int | None, str]:
            status = (await world.phase(name, "Failed"))["status"]
            found = status["containerStatuses"][0]["state"]["terminated"]
            return found["exitCode"], found.get("signal"), found["message"]

        assert await state("code") == (1, None, "the last words")
        assert await state("signal") == (128 + signal.SIGSEGV, signal.SIGSEGV, "")
        assert await state("log") == (3, None, "verdict")

    run(test)


@pytest.mark.parametrize(
    "fields", [{"command": ["/does/not/exist"]}, {"workingDir": "/does/not/exist"}], ids=["command", "folder"]
)
def test_a_pod_that_cannot_start_fails_with_a_message(fields: dict[str, Any]) -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", SLEEP, **fields))
        failed = await world.phase("a", "Failed")
        assert "/does/not/exist" in failed["status"]["message"]
        await world.cluster.delete(POD, "default", "a")
        await world.cluster.create(POD, world.pod("a", SLEEP))
        await world.phase("a", "Running")

    run(test)


def test_a_deleted_pod_gets_sigterm_and_says_how_it_ended() -> None:
    script = HELLO + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); signal.pause()"

    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", script))
        await world.lifelines.started("a")
        await world.phase("a", "Running")
        await world.cluster.delete(POD, "default", "a")
        last = await world.removed("a")
        assert last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] in (7, 128 + signal.SIGTERM)
        await world.lifelines.ended("a")

    run(test)


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP

    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", script, grace_s=1))
        await world.lifelines.started("a")
        await world.phase("a", "Running")
        await world.cluster.delete(POD, "default", "a")
        last = await world.removed("a")
        assert last["status"]["containerStatuses"][0]["state"]["terminated"]["signal"] == signal.SIGKILL
        await world.lifelines.ended("a")

    run(test)


def test_a_stopped_pod_is_killed_and_a_shorter_grace_counts() -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP

    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", script, grace_s=3600))
        os.kill((await world.lifelines.started("a")).pid, signal.SIGSTOP)
        await world.phase("a", "Running")
        await world.cluster.delete(POD, "default", "a")
        await world.cluster.delete(POD, "default", "a", grace_s=1)
        await world.removed("a")
        await world.lifelines.ended("a")

    run(test)


def test_a_pod_removed_by_force_is_killed_at_once() -> None:
    async def test(world: Local) -> None:
        script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
        await world.cluster.create(POD, world.pod("a", script, grace_s=3600))
        await world.lifelines.started("a")
        await world.phase("a", "Running")
        await world.cluster.delete(POD, "default", "a", grace_s=0)
        await world.lifelines.ended("a")

    run(test)


FAMILY = (
    HELLO
    + """
import subprocess
def child(name, script, **options):
    return subprocess.Popen([sys.executable, "-c", script, name], **options)
code = os.environ["SLEEP"]
child("child", code)
child("own-session", code, start_new_session=True)
# A double fork: the middle one ends, so nobody of the pod is the parent of the last one.
child("middle", "import subprocess, sys, os; subprocess.Popen([sys.executable, '-c', os.environ['SLEEP'], 'orphan'], "
      "start_new_session=True)").wait()
"""
)


def family(world: Local, name: str, end: str) -> dict[str, object]:
    made = world.pod(name, FAMILY + end, grace_s=1)
    made["spec"]["containers"][0]["env"].append({"name": "SLEEP", "value": SLEEP})
    return made


def test_all_descendants_end_with_a_deleted_pod() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("other", SLEEP))
        await world.cluster.create(POD, family(world, "a", "signal.pause()"))
        for name in ("other", "a", "child", "own-session", "orphan"):
            await world.lifelines.started(name)
        await world.phase("a", "Running")
        await world.cluster.delete(POD, "default", "a")
        await world.lifelines.ended("a", "child", "own-session", "orphan")
        assert not (await world.lifelines.started("other")).ended.is_set()

    run(test)


def test_all_descendants_end_with_a_pod_that_exits() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, family(world, "a", "line.recv(1); os._exit(0)"))
        for name in ("child", "own-session", "orphan"):
            await world.lifelines.started(name)
        os.kill((await world.lifelines.started("a")).pid, signal.SIGKILL)
        await world.lifelines.ended("a", "child", "own-session", "orphan")
        await world.phase("a", "Failed")

    run(test)


def test_a_zygote_that_dies_is_started_again() -> None:
    async def test(world: Local) -> None:
        first = await world.lifelines.started("zygote")
        os.kill(first.pid, signal.SIGKILL)
        await first.ended.wait()
        await world.cluster.create(POD, world.pod("a", SLEEP))
        await world.lifelines.started("a")
        await world.lifelines.started("zygote", after=first)

    run(test)


def test_where_a_zygote_serves_the_machine_already_pods_get_its_socket_and_none_is_started(tmp_path: Path) -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", "import os; print(os.environ['TRAINMASTER_ZYGOTE'])"))
        await world.phase("a", "Succeeded")
        assert (world.out / "logs" / "a.log").read_text().strip() == str(tmp_path / "z.sock")
        assert not (world.out / "logs" / "zygote.log").exists()

    run(test, shared=tmp_path / "z.sock")


def test_a_kubelet_without_a_zygote_still_runs_pods() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", "pass"))
        await world.phase("a", "Succeeded")

    run(test, zygote=["/does/not/exist"])


def test_sigterm_ends_everything_and_removes_the_folder() -> None:
    async def test(world: Local) -> None:
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
        await world.cluster.create(POD, world.pod("stubborn", stubborn))
        await world.cluster.create(POD, family(world, "a", "signal.pause()"))
        for name in ("zygote", "stubborn", "a", "child", "own-session", "orphan"):
            await world.lifelines.started(name)
        world.kubelet.terminate()
        await world.kubelet.wait()
        await world.lifelines.ended("zygote", "stubborn", "a", "child", "own-session", "orphan")
        assert not world.run_dir.exists()

    run(test)


def test_everything_ends_when_the_store_goes_away() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", SLEEP))
        for name in ("a", "zygote"):
            await world.lifelines.started(name)
        await world.server.close()
        await world.kubelet.wait()
        await world.lifelines.ended("a", "zygote")
        assert not world.run_dir.exists()

    run(test)


def test_pods_and_zygote_die_with_a_killed_kubelet() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", SLEEP))
        for name in ("a", "zygote"):
            await world.lifelines.started(name)
        world.kubelet.kill()
        await world.kubelet.wait()
        await world.lifelines.ended("a", "zygote")

    run(test)


def test_pods_of_a_dead_kubelet_are_reported_as_failed_by_the_next() -> None:
    async def test(world: Local) -> None:
        failed = await world.phase("a", "Failed")
        assert failed["status"]["reason"] == "KubeletLost"

    async def inside() -> None:
        async with local_world() as world:
            await world.lifelines.started("zygote")
            await world.cluster.create(POD, pod("default", "a", nodeName="local"))
            await test(world)

    asyncio.run(inside())


PARENT = """
import asyncio, json, os, sys
from pathlib import Path
from typing import Any
from tests.cluster.local_world import start_kubelet
from trainmaster_operator.cluster.port import POD
from trainmaster_operator.local.api_server.store_server import StoreServer
from trainmaster_operator.local.api_server.memory_store import MemoryStore

async def main():
    folder = Path(sys.argv[1])
    run_dir = folder / "run2"
    run_dir.mkdir(mode=0o700)
    store = MemoryStore()
    server = StoreServer(store, run_dir / "store.sock")
    await server.start()
    await start_kubelet(folder, run="run2")
    for pod in json.loads(sys.argv[2]):
        store.create(POD, pod)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_everything_ends_and_the_folder_is_removed_when_the_parent_is_killed() -> None:
    async def test(world: Local) -> None:
        first = await world.lifelines.started("zygote")
        world.kubelet.terminate()
        await world.kubelet.wait()
        pods = [family(world, "a", "signal.pause()"), world.pod("b", SLEEP)]
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, str(world.folder), json.dumps(pods),
            env={**os.environ, "PYTHONPATH": python_path()},
        )  # fmt: skip
        everyone = ("a", "b", "child", "own-session", "orphan")
        for name in everyone:
            await world.lifelines.started(name)
        await world.lifelines.started("zygote", after=first)
        kubelet = _parent_of((await world.lifelines.started("b")).pid)
        gone = os.pidfd_open(kubelet)
        parent.kill()
        await parent.wait()
        await world.lifelines.ended(*everyone, "zygote")
        await _readable(gone)
        assert not (world.folder / "run2").exists()

    run(test)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _readable(fd: int) -> None:
    ready = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, ready.set)
    await ready.wait()
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)


def test_a_pod_that_is_lost_with_its_node_ends_and_nothing_is_said_of_it() -> None:
    async def test(world: Local) -> None:
        await world.cluster.create(POD, world.pod("a", SLEEP))
        await world.phase("a", "Running")
        log = world.out / "logs" / "a.log"
        patch = {"metadata": {"annotations": {LOST: "true"}}}
        lost = await world.cluster.patch(POD, "default", "a", patch)
        marked = f"TRAINMASTER_POD_UID={lost['metadata']['uid']}"
        while any(started_with(pid, marked) for pid in table()):
            await asyncio.sleep(0.01)
        assert log.exists()
        await world.cluster.delete(POD, "default", "a", grace_s=1)
        assert (await world.cluster.get(POD, "default", "a"))["status"]["phase"] == "Running"
        await world.cluster.delete(POD, "default", "a", grace_s=0)
        await world.cluster.create(POD, world.pod("a", HELLO))
        await world.phase("a", "Succeeded")

    run(test)
