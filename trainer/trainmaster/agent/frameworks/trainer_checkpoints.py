"""From which checkpoint a Trainer of transformers goes on: its newest one may be half written.

Trainer writes its checkpoints into folders `checkpoint-N` of its output folder, file by file, and names the last one
that it finds, whole or not. Here a checkpoint counts if all its files are whole. A run of Trainer that was cut off goes
on from its newest such checkpoint in the next round, though its script does not ask for that: a file in the output
folder says since when its checkpoints are those of this job. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import sys
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.contract.wire import environment

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_GENERATORS = re.compile(r"rng_state_(\d+)\.pth")
_STATE = "trainer_state.json"
_UNFINISHED = "checkpoint-is-incomplete.txt"  # lies there while Trainer saves because of a SIGTERM
_ZIPPED = (".pt", ".pth", ".bin")  # what torch.save writes
_LONGEST_HEADER = 100 << 20  # bytes, as the safetensors library has it

_begun: set[str] = set()  # output folders in which a Trainer of this process has trained


@dataclass(frozen=True)
class Choice:
    """What `Trainer.train` gets as `resume_from_checkpoint`, and what to tell people about it; "" is nothing."""

    resume: Any
    words: str = ""


def steps_of(output: Path, since_ns: int = 0) -> dict[int, Path]:
    """Return the checkpoints of an output folder by their steps, those whose last file was written after `since_ns`."""
    found = {}
    for path in output.glob("checkpoint-*") if output.is_dir() else ():
        match = _CHECKPOINT.fullmatch(path.name)
        try:
            if match and (path / _STATE).stat().st_mtime_ns >= since_ns:
                found[int(match[1])] = path
        except OSError:
            continue  # it is half written, or was removed just now
    return found


def is_whole(checkpoint: Path) -> bool:
    """Return True if all files of a checkpoint are whole, as far as their formats tell."""
    try:
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        names = {path.name for path in files}
        if _STATE not in names or _UNFINISHED in names or any(not _is_file_whole(path) for path in files):
            return False
        return all(_has_metadata(path) for path in files if path.suffix == ".distcp")
    except OSError:
        return False  # it is being removed


def has_generators(checkpoint: Path, ranks: int) -> bool:
    """Return True if the generators of all ranks are in a checkpoint: each rank writes its own, some after the rest."""
    names = os.listdir(checkpoint)
    written = {int(match[1]) for name in names if (match := _GENERATORS.fullmatch(name))}
    return ranks == 1 or not written or written >= set(range(ranks))


def choose(given: Any, output: Path, own: Mapping[int, Path], common: Collection[int], hindrance: str = "") -> Choice:
    """Return from which checkpoint a Trainer goes on.

    given: what the script has asked for: None or False, True for the newest one, or a path. own: the checkpoints that
    this job has made, by step. common: the steps of `output` that are whole for all ranks. hindrance: why
    nothing that this job has saved can be taken, "" if it can.
    """
    if given is None and hindrance:
        return Choice(given, f"Trainer begins again, since {hindrance}")
    if given is False or (given is None and not own):
        return Choice(given)
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        match = _CHECKPOINT.fullmatch(path.name)
        # A path that the script has not found in its own output folder is what a person wants.
        if match is None or path.resolve().parent != output.resolve() or int(match[1]) in common:
            return Choice(given)
        usable, passed_over = list(common), path.name
    else:
        usable = [step for step in common if given or step in own]
        newest = max(own if given is None else steps_of(output), default=-1)
        passed_over = f"checkpoint-{newest}" if newest > max(usable, default=-1) else ""
    skipped = f", since {passed_over} is half written" if passed_over else ""
    if not usable:
        return Choice(None, f"Trainer begins again{skipped}" if skipped else "")
    step = max(usable)
    return Choice(str(output / f"checkpoint-{step}"), f"Trainer goes on from checkpoint-{step}{skipped}")


def of_trainer(trainer: Any, given: Any) -> Any:
    """Return what `train` of a Trainer gets as `resume_from_checkpoint` in this rank. All ranks get the same."""
    output, ranks = Path(trainer.args.output_dir), int(trainer.args.world_size)
    began_ns = _began_ns(output, writes=trainer.args.local_process_index == 0)
    own = steps_of(output, began_ns) if began_ns else {}
    seen = _of_all_ranks(set(own), ranks)
    own = {step: own[step] for step in set.intersection(*seen)}
    hindrance = ""
    if own and getattr(trainer.args, "save_only_model", False):
        # It would go on with a new optimizer and the first learning rate: another training than an undisturbed one.
        hindrance = "its checkpoints have no optimizer (save_only_model)"
    elif not own and any(seen):
        hindrance = f"some ranks do not see its checkpoints in {output}, which must be on a volume of all pods"
    whole = {step for step, path in steps_of(output).items() if is_whole(path)}
    complete = {step for step in whole if has_generators(output / f"checkpoint-{step}", ranks)}
    # With another number of ranks than before, no checkpoint has the generators of all.
    common = _common(complete, ranks) or _common(whole, ranks)
    found = choose(given, output, own, common, hindrance)
    if found.words and trainer.args.process_index == 0:
        print(f"trainmaster: {found.words}", file=sys.stderr, flush=True)
    return found.resume


def _began_ns(output: Path, writes: bool) -> int:
    """Return when an earlier process of this job has begun to train into `output`; 0 if none has.

    A process that trains again into the same folder begins anew, as its script has it. `writes`: leave the mark by
    which later processes know that one has begun.
    """
    if str(output) in _begun:
        return 0
    _begun.add(str(output))
    mark = output / f".trainmaster-{os.environ.get(environment.JOB_UID, '')}"
    try:
        return mark.stat().st_mtime_ns
    except OSError:
        pass
    if writes:
        with contextlib.suppress(OSError):  # then Trainer can save nothing there either
            output.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return 0


def _common(steps: set[int], ranks: int) -> set[int]:
    """Return the steps that all ranks have found: not all of them need to see the same files."""
    return set.intersection(*_of_all_ranks(steps, ranks))


def _of_all_ranks(steps: set[int], ranks: int) -> list[set[int]]:
    """Return the steps that each rank has found."""
    distributed = sys.modules.get("torch.distributed")
    if ranks == 1 or distributed is None or not distributed.is_initialized():
        return [steps]
    found: list[Any] = [None] * ranks
    distributed.all_gather_object(found, sorted(steps))
    return [set(each) for each in found]


def _is_file_whole(path: Path) -> bool:
    if path.suffix in _ZIPPED:
        return zipfile.is_zipfile(path)  # its directory is at its end
    if path.suffix == ".safetensors":
        return _is_safetensors_whole(path)
    if path.name == _STATE or path.name.endswith(".index.json"):
        return _is_json_whole(path)
    return True


def _is_safetensors_whole(path: Path) -> bool:
    with open(path, "rb") as file:
        begun = file.read(8)
        length = struct.unpack("<Q", begun)[0] if len(begun) == 8 else _LONGEST_HEADER + 1
        header = file.read(length) if length <= _LONGEST_HEADER else b""
        size = os.fstat(file.fileno()).st_size
    try:
        tensors = [value for name, value in json.loads(header).items() if name != "__metadata__"]
        return size == 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def _is_json_whole(path: Path) -> bool:
    """Return True if a file of JSON is whole, and if the files of weights that it names exist."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return False
    shards = content.get("weight_map", {}) if isinstance(content, dict) else {}
    return all((path.parent / str(shard)).is_file() for shard in set(shards.values()))


def _has_metadata(path: Path) -> bool:
    """torch.distributed.checkpoint writes its metadata when all ranks have written their parts."""
    return (path.parent / ".metadata").is_file()
