from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.trainer.shards import put
from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files import storage as storage_module
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.checkpoint.state import waits_before_resume
from trainmaster.contract.wire.checkpoint_format import Lineage, directory_name, parse_directory
from trainmaster.errors import ConfigError, Fenced


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, Lineage], list[str], list[str]]:
    """(lineages, all directories, the chain): rounds that resume from any checkpoint of the chain so far, write
    steps, and old worlds that write late."""
    lineages: dict[int, Lineage] = {}
    directories: list[str] = []
    expected: list[str] = []  # newest first
    round = 0
    for _ in range(draw(st.integers(0, 5))):
        round += draw(st.integers(1, 2))  # a round may die before it takes the storage
        at = draw(st.integers(0, len(expected)))
        expected = expected[at:]
        resume = expected[0] if expected else None
        lineages[round] = Lineage(round, resume)
        step = (parse_directory(resume) or (0, 0))[0] if resume else 0
        for _ in range(draw(st.integers(0, 3))):
            step += draw(st.integers(1, 3))
            expected.insert(0, directory_name(step, round))
            directories.append(expected[0])
        for old in draw(st.lists(st.sampled_from(sorted(lineages)), max_size=2)):
            if old != round:  # an old world goes on from where the chain left it
                last = max([s for s, r in map(_parse, directories) if r == old], default=0)
                directories.append(directory_name(last + draw(st.integers(1, 4)), old))
    return lineages, draw(st.permutations(directories)), expected


def _parse(name: str) -> tuple[int, int]:
    parsed = parse_directory(name)
    assert parsed is not None
    return parsed


def _floor(name: str | None) -> int:
    return _parse(name)[0] if name else 0


@given(histories())
def test_the_chain_is_what_rounds_wrote_one_after_the_other_whatever_else_lies_there(history) -> None:
    lineages, directories, expected = history
    chain = lineage.chain(lineages, directories)
    steps = [_parse(name)[0] for name in chain]
    rounds = [_parse(name)[1] for name in chain]
    assert steps == sorted(set(steps), reverse=True)
    assert rounds == sorted(rounds, reverse=True)
    assert set(expected) <= set(chain)
    newest = max(lineages, default=0)
    base = lineages[newest].resume if newest else None
    for name in set(chain) - set(expected):
        # A late write counts only where it doesn't fork the history: below what a later round resumed from.
        step, round = _parse(name)
        assert round < newest
        assert step < _floor(base)


@given(histories(), st.data())
def test_what_an_old_world_writes_after_its_replacement_started_is_never_on_the_chain(history, data) -> None:
    lineages, directories, _ = history
    before = lineage.chain(lineages, directories)
    newest = max(lineages, default=0) + 1
    assume(newest > 1)
    resume = data.draw(st.sampled_from([*before, None]))
    lineages = {**lineages, newest: Lineage(newest, resume)}
    late = directory_name(_floor(resume) + data.draw(st.integers(1, 50)), data.draw(st.integers(1, newest - 1)))
    after = lineage.chain(lineages, [*directories, late])
    assert late not in after
    assert after == (before[before.index(resume) :] if resume else [])


def test_an_absolute_path_ends_the_chain() -> None:
    lineages = {1: Lineage(1, "/elsewhere/step-7.r3"), 2: Lineage(2, "step-9.r1")}
    found = lineage.chain(lineages, ["step-5.r1", "step-8.r1", "step-9.r1", "step-10.r2"])
    assert found == ["step-10.r2", "step-9.r1", "step-8.r1", "/elsewhere/step-7.r3"]


def test_a_step_that_only_memory_had_counts_where_the_next_round_saved_it() -> None:
    lineages = {1: Lineage(1, None), 2: Lineage(2, "step-9.r1")}
    assert lineage.chain(lineages, ["step-6.r1", "step-9.r2"]) == ["step-9.r2", "step-6.r1"]
    assert lineage.chain(lineages, ["step-6.r1", "step-9.r1", "step-9.r2"]) == ["step-9.r1", "step-6.r1"]


def test_a_lineage_that_resumes_from_its_own_future_is_damaged() -> None:
    with pytest.raises(checkpoint_manifest.Damaged, match="isn't older"):
        lineage.chain({2: Lineage(2, "step-9.r2")}, [])


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(tmp_path)


def test_a_round_takes_the_storage_once_and_fences_older_ones(storage: PosixStorage) -> None:
    lineage.begin(storage, Lineage(3, None))
    with pytest.raises(Fenced, match="round 3 has it"):
        lineage.begin(storage, Lineage(3, None))
    with pytest.raises(Fenced):
        lineage.begin(storage, Lineage(2, None))
    with pytest.raises(Fenced):
        lineage.candidates(storage, 3, "", "Auto")
    assert lineage.newest_round(storage) == 3


def test_never_and_a_path_count_for_the_first_round_of_a_job_only(storage: PosixStorage) -> None:
    assert lineage.candidates(storage, 1, "job", "Never") == []
    assert lineage.candidates(storage, 1, "job", "/other/step-3.r1") == ["/other/step-3.r1"]
    lineage.begin(storage, Lineage(1, None, "job"))
    assert put(storage.root, 5, 1)["committed"]
    assert lineage.candidates(storage, 2, "job", "Never") == ["step-5.r1"]
    assert lineage.candidates(storage, 2, "job", "/other/step-3.r1") == ["step-5.r1"]


def test_the_folder_of_another_job_is_refused_with_the_way_out(storage: PosixStorage) -> None:
    lineage.begin(storage, Lineage(1, None, "old-job"))
    put(storage.root, 5, 1)
    with pytest.raises(ConfigError, match=r"another job \(old-job\); use an empty folder .*/step-5.r1 to start from"):
        lineage.candidates(storage, 1, "new-job", "Auto")


def test_a_manifest_is_read_back_and_a_shorter_file_is_found(storage: PosixStorage) -> None:
    lineage.begin(storage, Lineage(1, None))
    for rank in range(2):
        put(storage.root, 5, 1, rank, 2)
    manifest = checkpoint_manifest.read_manifest(storage, "step-5.r1")
    assert (manifest.step, manifest.world_size, manifest.values) == (5, 2, {"lr": 0.5})
    assert manifest.data == {"consumed": 40}
    assert [c.offset for c in manifest.tensors["w"].chunks] == [[0, 0], [1, 0]]
    checkpoint_manifest.verify(storage, "step-5.r1", [(f.name, f.size, f.sha256) for f in manifest.files])
    shard = Path(storage.root, "step-5.r1", manifest.files[1].name)
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(checkpoint_manifest.Damaged, match=r"rank-00001\.safetensors has"):
        checkpoint_manifest.read_manifest(storage, "step-5.r1")


def test_a_flipped_bit_is_found(storage: PosixStorage) -> None:
    put(storage.root, 5, 1)
    manifest = checkpoint_manifest.read_manifest(storage, "step-5.r1")
    shard = Path(storage.root, "step-5.r1", manifest.files[0].name)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(checkpoint_manifest.Damaged, match="doesn't match its checksum"):
        checkpoint_manifest.verify(storage, "step-5.r1", [(f.name, f.size, f.sha256) for f in manifest.files])


class FullFor(PosixStorage):
    """A disk that is full the first so many times."""

    def __init__(self, root: Path, times: int, why: int = errno.ENOSPC) -> None:
        super().__init__(root)
        self.times, self.why = times, why

    def create_exclusive(self, path: str, data: bytes) -> bool:
        if self.times:
            self.times -= 1
            raise OSError(self.why, os.strerror(self.why))
        return super().create_exclusive(path, data)


def test_a_round_waits_for_a_disk_that_is_full_for_a_moment_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    storage = FullFor(tmp_path, 3)
    waits_before_resume.begin_when_writable(
        storage, Lineage(1, None), lambda reason, message: said.append(f"{reason}: {message}")
    )
    assert lineage.newest_round(storage) == 1
    assert said == [
        f"StorageUnavailable: checkpoint folder {tmp_path}: [Errno 28] No space left on device; "
        f"waiting until it can be written to"
    ]


@pytest.mark.parametrize("without_links", [False, True])
def test_a_round_whose_folder_can_not_be_synced_at_first_takes_the_storage_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_links: bool
) -> None:
    fails = [errno.EIO, errno.EIO]
    sync = storage_module._sync_folder

    def unsteady(folder: Path) -> None:
        if fails:
            raise OSError(fails.pop(), "the folder can't be synced")
        sync(folder)

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(storage_module, "_sync_folder", unsteady)
    if without_links:
        monkeypatch.setattr(storage_module.os, "link", refused)
    storage = PosixStorage(tmp_path)
    said: list[str] = []
    waits_before_resume.begin_when_writable(storage, Lineage(1, None), lambda reason, message: said.append(reason))
    assert (lineage.newest_round(storage), said, fails) == (1, ["StorageUnavailable"], [])
    with pytest.raises(Fenced):
        lineage.begin(storage, Lineage(1, None))


@pytest.mark.parametrize(("why", "patience_s"), [(errno.EROFS, 20.0), (errno.ENOSPC, -1.0)])
def test_a_folder_that_can_never_be_written_to_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int, patience_s: float
) -> None:
    monkeypatch.setattr(waits_before_resume, "PATIENCE_S", patience_s)
    with pytest.raises(OSError, match=os.strerror(why)):
        waits_before_resume.begin_when_writable(
            FullFor(tmp_path, 1, why), Lineage(1, None), lambda reason, message: None
        )
