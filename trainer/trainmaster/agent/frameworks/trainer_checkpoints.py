"""From which checkpoint a Trainer of transformers goes on: its newest one may be half written.

Trainer writes its checkpoints into folders `checkpoint-N` of its output folder, file by file, and names the last one
that it finds, whole or not. Here a checkpoint counts if all its files are whole. A run of Trainer that was cut off goes
on from its newest such checkpoint in the next round, though its script does not ask for that: `training_mark` knows
since when the checkpoints of the folder are those of this job. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster.agent.frameworks import training_mark
from trainmaster.agent.frameworks.training_mark import Mark

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_GENERATORS = re.compile(r"rng_state_(\d+)\.pth")
_STATE = "trainer_state.json"
_UNFINISHED = "checkpoint-is-incomplete.txt"  # lies there while Trainer saves because of a SIGTERM
# What Trainer, Accelerate with FSDP, PEFT and DeepSpeed write by torch.save, also in parts and per rank.
_ZIPPED = re.compile(
    r"(rank\d+-of-\d+-)?(optimizer|scheduler|scaler|sampler|dl_state_dict)(_\d+)?(_rank\d+)?\.(pt|bin)"
    r"|rng_state(_\d+)?\.pth|training_args\.bin"
    r"|(rank\d+-of-\d+-)?(pytorch_model|adapter_model)([._-].*)?\.bin"
    r"|((bf16_|fp16_)?(zero_pp|mp|expp)_rank|layer|expert)_\d+.*(model|optim)_states\.pt"
)
_INDEX = re.compile(r"(pytorch_model|model|adapter_model)\..*index.*\.json")  # which file has which weights
_LONGEST_HEADER = 100 << 20  # bytes, as the safetensors library has it

_begun: dict[Path, Mark] = {}  # output folders in which a Trainer of this process has trained: the mark that it found


@dataclass(frozen=True)
class Choice:
    """What `Trainer.train` gets as `resume_from_checkpoint`, and what to tell people about it; "" is nothing."""

    resume: Any
    words: str = ""


@dataclass(frozen=True)
class View:
    """What a rank sees of an output folder. Checkpoints are known by their steps.

    begun: an earlier process of this job has trained into the folder. several: one of them has trained into it several
    times. found: all checkpoints, whole or not. own: those that this job has made. whole: those whose files are all
    whole. complete: those of them that have the random generators of all ranks.
    """

    begun: bool = False
    several: bool = False
    found: frozenset[int] = frozenset()
    own: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    complete: frozenset[int] = frozenset()


def folders_of(output: Path) -> dict[int, Path]:
    """Return the checkpoints of an output folder by their steps, whole or not."""
    found = ((_CHECKPOINT.fullmatch(path.name), path) for path in output.glob("checkpoint-*"))
    return {int(match[1]): path for match, path in found if match and path.is_dir()}


def steps_of(output: Path, since_ns: int = 0) -> dict[int, Path]:
    """Return the checkpoints of an output folder by their steps, those whose last file was written after `since_ns`."""
    found = {}
    for step, path in folders_of(output).items():
        try:
            if (path / _STATE).stat().st_mtime_ns >= since_ns:
                found[step] = path
        except OSError:
            continue  # it is half written, or was removed just now
    return found


def is_whole(checkpoint: Path) -> bool:
    """Return True if all files of a checkpoint are whole, as far as their formats tell.

    Files that a script has added are not judged, except those whose name ends in .safetensors or .distcp.
    """
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


def choose(given: Any, output: Path, asked: int | None, views: Sequence[View], has_optimizer: bool = True) -> Choice:
    """Return from which checkpoint a Trainer goes on. All ranks that ask for the same come to the same.

    given: what the script has asked for: None or False, True for the newest one, or a path. asked: the step of this
    path, None if it is not that of a checkpoint in `output`. views: what each rank sees. has_optimizer: checkpoints
    have the state of the optimizer.
    """
    if hindrance := _hindrance(given, output, views, has_optimizer):
        return Choice(None, f"Trainer begins again, since {hindrance}")
    own, found = _in_all(views, "own"), _in_all(views, "found")
    if given is False or (given is None and not own):
        return Choice(given)
    nothing = not any(view.found if asked is None else asked in view.found for view in views)
    if nothing and not any(view.begun for view in views):
        return Choice(given)  # before this job has saved, Trainer's own error is right
    # With another number of ranks than before, no checkpoint has the generators of all.
    usable = _in_all(views, "complete") or _in_all(views, "whole")
    if given is None or given is True:
        usable = usable if given else usable & own
        newest = max(found if given else own)
        skipped = f", since checkpoint-{newest} is half written" if newest > max(usable, default=-1) else ""
    # A path that the script has not found in its own output folder is what a person wants.
    elif asked is None or asked in usable:
        return Choice(given)
    elif asked in found:
        skipped = f", since checkpoint-{asked} is half written"
    elif nothing:
        skipped = f", since there is no checkpoint-{asked} in {output}"
    else:
        skipped = f", since some ranks do not see checkpoint-{asked} in {output}"
    if not usable:
        return Choice(None, f"Trainer begins again{skipped}")
    step = max(usable)
    return Choice(str(output / f"checkpoint-{step}"), f"Trainer goes on from checkpoint-{step}{skipped}")


def _hindrance(given: Any, output: Path, views: Sequence[View], has_optimizer: bool) -> str:
    """Return why a Trainer that has not asked for a path cannot go on; "" if it can, or if it need not."""
    if given is None and any(view.several for view in views):
        return f"this script trains several times into {output}"
    if given is not None and given is not True:
        return ""
    wanted = "own" if given is None else "found"
    if not _in_all(views, wanted) and any(getattr(view, wanted) for view in views):
        return f"some ranks do not see its checkpoints in {output}, which must be on a volume of all pods"
    if given is True and not any(view.found for view in views) and any(view.begun for view in views):
        return f"there is no checkpoint in {output}"
    if given is None and _in_all(views, "own") and not has_optimizer:
        # It would go on with a new optimizer and the first learning rate: another training than an undisturbed one.
        return "its checkpoints have no optimizer (save_only_model)"
    return ""


def _in_all(views: Sequence[View], name: str) -> frozenset[int]:
    """Return the steps that all ranks see."""
    return frozenset.intersection(*(getattr(view, name) for view in views))


def of_trainer(trainer: Any, given: Any) -> Any:
    """Return what `train` of a Trainer gets as `resume_from_checkpoint` in this rank. All ranks get the same."""
    output, ranks = Path(trainer.args.output_dir), int(trainer.args.world_size)
    folder = output.resolve()
    mark = _begun[folder] if folder in _begun else training_mark.read(folder)
    again = folder in _begun or mark.in_this_round  # by this process, or by one that its program has run before it
    asked = _step_of(given, folder)
    # All ranks have read the mark before one of them writes it.
    views = _of_all_ranks(_look(output, mark, ranks, first=not again), ranks)
    chosen = choose(given, output, asked, views, not getattr(trainer.args, "save_only_model", False))
    if chosen.words and trainer.args.process_index == 0:
        print(f"trainmaster: {chosen.words}", file=sys.stderr, flush=True)
    if chosen.resume and (chosen.resume is True or not Path(chosen.resume).is_dir()):
        return chosen.resume  # Trainer refuses this, so no training begins
    _begun.setdefault(folder, mark)
    if trainer.args.local_process_index == 0:
        # A second training that goes on from a checkpoint of the first, as the script has it, is the same training.
        goes_on = chosen.resume and (given is True or asked is not None)
        if again and not goes_on:
            training_mark.write(folder, several=True)
        elif not again:
            training_mark.write(folder)
    return chosen.resume


def _step_of(given: Any, folder: Path) -> int | None:
    """Return the step of a path if it is the one of a checkpoint in a folder."""
    if not isinstance(given, str | os.PathLike):
        return None
    path = Path(given)
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match and path.resolve().parent == folder else None


def _look(output: Path, mark: Mark, ranks: int, first: bool) -> View:
    """Return what this rank sees. `first`: nothing has trained into the folder before in this round.

    A program that trains again into the same folder begins anew, as it would by itself.
    """
    whole = {step for step, path in steps_of(output).items() if is_whole(path)}
    return View(
        begun=mark.began_ns > 0,
        several=first and mark.several,
        found=frozenset(folders_of(output)),
        own=frozenset(steps_of(output, mark.began_ns) if first and mark.began_ns else ()),
        whole=frozenset(whole),
        complete=frozenset(step for step in whole if has_generators(output / f"checkpoint-{step}", ranks)),
    )


def _of_all_ranks(view: View, ranks: int) -> list[View]:
    """Return what each rank sees: not all of them need to see the same files."""
    distributed = sys.modules.get("torch.distributed")
    if ranks == 1 or distributed is None or not distributed.is_initialized():
        return [view]
    views: list[Any] = [None] * ranks
    distributed.all_gather_object(views, view)
    return views


def _is_file_whole(path: Path) -> bool:
    if _ZIPPED.fullmatch(path.name):
        return zipfile.is_zipfile(path)  # its directory is at its end
    if path.suffix == ".safetensors":
        return _is_safetensors_whole(path)
    if path.name == _STATE or _INDEX.fullmatch(path.name):
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
