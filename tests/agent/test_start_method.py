"""How the first rank of a new pod is started: decided from what other agents answer and what becomes of the zygote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.test_settings import POD
from trainmaster.agent.shell import known_imports
from trainmaster.agent.shell.known_imports import KnownImports
from trainmaster.agent.shell.launching.agent_settings import Settings
from trainmaster.agent.shell.launching.import_environment import ImportEnvironment
from trainmaster.agent.shell.start_method import StartMethod
from trainmaster.agent.zygote.import_plan import Imported
from trainmaster.contract.wire import Assignment, Neighbour, StoreAddress, environment
from trainmaster_operator.runtime.virtual_clock import run_virtual

KNOWN = KnownImports([Imported("torch", ""), Imported("sklearn", "")], {"KMP_INIT_AT_FORK": "FALSE"}, ["rich"])
NEXT, FIRST = StoreAddress("10.0.0.2", 7001), StoreAddress("10.0.0.0", 7000)
OWN_SLOT = int(POD[environment.SLOT])

Answer = Callable[[KnownImports | None], None]


@dataclass
class Zygotes:
    """What the zygotes of an agent look like to its start method."""

    alive: bool = True
    without_forks: bool = False
    kinds: list[str] = field(default_factory=list)
    lessons: list[KnownImports] = field(default_factory=list)

    def best(self) -> Any:
        return self.learned() or self.pristine()

    def pristine(self) -> Any:
        return SimpleNamespace(kind="pristine") if "pristine" in self.kinds else None

    def learned(self) -> Any:
        return SimpleNamespace(kind="learned", barred=[]) if "learned" in self.kinds else None

    def learn(self, known: KnownImports, env: ImportEnvironment, *, hurry: bool = False) -> None:
        assert hurry, "a rank waits for it"
        self.lessons.append(known)


class Pod:
    """A new pod with a script in it, in a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, round: int = 2, deadline_s: float = 0.0, **env: str) -> None:
        self.asked: list[tuple[list[StoreAddress], Answer]] = []
        self.told: list[bytes] = []
        self.ready: list[float] = []
        self.zygotes = Zygotes()
        variables = {environment.FRAMEWORK: "PyTorch", environment.COMMAND: json.dumps(["python", "train.py"]), **env}
        self.settings = Settings.read({**POD, **variables})
        self.start_method = StartMethod(
            self.settings.key(),
            lambda: self.settings,
            self.zygotes,  # type: ignore[arg-type]
            lambda reason, message: None,
            self.told.append,
            lambda: self.ready.append(asyncio.get_running_loop().time()),
        )
        monkeypatch.setattr(known_imports, "ask", self._ask)
        self.assignment = Assignment(
            round=round,
            world_size=4,
            first_rank=1,
            ranks=1,
            group_rank=1,
            group_world_size=4,
            store=StoreAddress("10.0.0.7", 29500),
            restart_count=round - 1,
            deadline_s=deadline_s,
            peer_secret="of this round",
            ring=Neighbour(OWN_SLOT + 1, NEXT),
            first=Neighbour(OWN_SLOT - 1, FIRST),
        )

    def _ask(self, peers: Sequence[StoreAddress], secret: str, answered: Answer) -> None:
        self.asked.append((list(peers), answered))

    @property
    def way(self) -> str | None:
        return self.start_method.choose()

    def begin(self) -> None:
        self.start_method.begin(self.assignment)

    async def answer(self, known: KnownImports | None) -> None:
        """Another agent's answer, which comes from a thread."""
        self.asked[0][1](known)
        await asyncio.sleep(0)

    def now(self, *kinds: str, **changes: bool) -> None:
        """Zygotes of these kinds are there from now on."""
        self.zygotes.kinds = list(kinds)
        for name, value in changes.items():
            setattr(self.zygotes, name, value)
        self.start_method.zygotes_changed()


def test_the_ranks_of_a_jobs_first_round_are_executed_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch, round=1)
        pod.begin()
        assert (pod.way, pod.asked) == ("exec", [])

    run_virtual(run())


def test_a_new_pod_asks_the_next_agent_and_that_of_rank_0_and_never_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        assert [peers for peers, _ in pod.asked] == [[NEXT, FIRST]]
        assert pod.way is None
        first = Pod(monkeypatch, **{environment.SLOT: "0"})
        first.begin()
        assert [peers for peers, _ in first.asked] == [[NEXT]]

    run_virtual(run())


def test_the_rank_of_a_new_pod_waits_for_the_zygote_that_imports_what_another_agent_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        await pod.answer(KNOWN)
        assert (pod.zygotes.lessons, pod.way) == ([KNOWN], None)
        pod.now("pristine")
        assert pod.way is None
        pod.now("pristine", "learned")
        assert pod.way == "learned"

    run_virtual(run())


def test_a_zygote_that_this_machine_shares_and_that_knows_the_script_is_forked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        pod.now("pristine", "learned")
        assert pod.way is None, "what it has learned may be another script's"
        await pod.answer(KNOWN)
        assert pod.way == "learned"
        assert pod.ready

    run_virtual(run())


@pytest.mark.parametrize("when", ["not known", "silent"])
def test_the_rank_is_executed_when_no_agent_knows_anything(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        if when == "not known":
            await pod.answer(None)
        else:
            await asyncio.sleep(known_imports.ANSWER_S - 0.01)
            assert pod.way is None
            await asyncio.sleep(0.02)
        assert (pod.way, len(pod.ready), pod.zygotes.lessons) == ("exec", 1, [])

    run_virtual(run())


def test_an_answer_that_comes_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        await asyncio.sleep(known_imports.ANSWER_S + 1)
        await pod.answer(KNOWN)
        assert (pod.way, pod.zygotes.lessons) == ("exec", [])

    run_virtual(run())


@pytest.mark.parametrize(
    ("deadline_s", "limit_s"),
    [(0.0, known_imports.IMPORT_S), (1000.0, known_imports.IMPORT_S), (20.0, 10.0)],
)
def test_a_zygote_that_does_not_come_up_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float, limit_s: float
) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch, deadline_s=deadline_s)
        pod.begin()
        await pod.answer(KNOWN)
        pod.now("pristine")
        await asyncio.sleep(limit_s - 0.1)
        assert pod.way is None
        await asyncio.sleep(0.2)
        assert pod.way == "exec"

    run_virtual(run())


@pytest.mark.parametrize("change", [{"alive": False}, {"without_forks": True}], ids=["it ended", "torch forbids it"])
def test_a_zygote_that_cannot_serve_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, change: dict[str, bool]) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        await pod.answer(KNOWN)
        pod.now("pristine", **change)
        pod.now("pristine", alive=True)
        assert pod.way == "exec"

    run_virtual(run())


@pytest.mark.parametrize(
    "env",
    [
        {environment.ZYGOTE_ENABLED: "0"},
        {environment.COMMAND: '["./run.sh"]'},
        {environment.COMMAND: '["python", "-O", "train.py"]'},
        {environment.FRAMEWORK: "Trainmaster"},
    ],
    ids=["zygote off", "another program", "flags of the interpreter", "our own loop"],
)
def test_agents_whose_ranks_cannot_or_need_not_be_forked_so_ask_nobody(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch, **env)
        pod.begin()
        assert pod.asked == []

    run_virtual(run())


def test_an_agent_whose_own_ranks_have_told_their_imports_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.start_method.lessons.heard = True
        pod.begin()
        assert (pod.asked, pod.way) == ([], "exec")

    run_virtual(run())


def test_others_are_told_of_imports_while_a_zygote_has_them_and_the_script_may_be_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        pod = Pod(monkeypatch)
        pod.begin()
        await pod.answer(KNOWN)
        assert not any(pod.told), "no zygote has them yet"
        pod.now("pristine", "learned")
        told = KnownImports.unpack(pod.told[-1])
        assert (told.imports, told.variables) == (KNOWN.imports, KNOWN.variables)
        pod.start_method.lessons.hear(SimpleNamespace(imports=[], imported_variables={}), {"forkable": False})  # type: ignore[arg-type]
        assert pod.told[-1] == b""

    run_virtual(run())


def test_what_agents_tell_each_other_comes_out_as_it_went_in() -> None:
    assert KnownImports.unpack(KNOWN.pack()) == KNOWN


@pytest.mark.parametrize("packed", [b"", b"no zlib", KNOWN.pack()[:-9]])
def test_what_is_not_understood_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        KnownImports.unpack(packed)


def test_what_is_known_comes_before_what_is_told_and_keeps_its_values() -> None:
    more = KNOWN.more(KnownImports([Imported("rich", "sklearn"), Imported("torch", "x")], {"A": "1"}, ["zmq"]))
    assert more.imports == [*KNOWN.imports, Imported("rich", "sklearn")]
    assert more.variables == {**KNOWN.variables, "A": "1"}
    assert more.barred == ["rich", "zmq"]
