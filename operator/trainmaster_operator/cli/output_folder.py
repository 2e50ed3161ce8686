"""The output folder of a run: which run holds it, and the names of the files in it. `resumed_run` continues in one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from trainmaster.contract.wire import profile_request
from trainmaster.contract.wire.atomic_replace import replace
from trainmaster_operator.api.api_group import JOB_KIND
from trainmaster_operator.cli.refusal import Refusal, why

STATUS = "status.yaml"
METRICS = "metrics.jsonl"
MEMORY = "memory.json"
PIDS = "pids.json"  # While the run goes on.
REPORT = "report.html"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
FINAL = "final.json"
DIGESTS = "digests"
OURS = (STATUS, METRICS, MEMORY, PIDS, REPORT, LOGS, CHECKPOINTS, FINAL, DIGESTS, profile_request.FILE)


class OutputFolder:
    """The directory of a run. `claim` returns it and holds it for this process until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> OutputFolder:
        """Create and lock the directory. Raise Refusal if another run holds it, or if it cannot be written.

        Nothing is created in it before there is a status (`begin`): a command that is stopped in between would leave a
        directory that is neither empty nor that of a run.
        """
        lock = -1
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in (path, path / LOGS):
                # It may belong to another user, or be on a read-only file system.
                if folder.exists():
                    with tempfile.TemporaryFile(dir=folder):
                        pass
        except BlockingIOError:
            os.close(lock)
            raise Refusal(f"{path}: another run is using this folder; choose another --out") from None
        except OSError as error:
            if lock >= 0:
                os.close(lock)
            raise Refusal(f"{path}: cannot be used as the output folder: {why(error)}; choose another --out") from None
        return cls(path, lock)

    def release(self) -> None:
        os.close(self._lock)

    @property
    def logs(self) -> Path:
        return self.path / LOGS

    def begin(self, resource: dict[str, Any]) -> None:
        """Write the first status of a run, and create the directory of its logs. Raise OSError."""
        self.write_status(resource)
        self.logs.mkdir(exist_ok=True)

    def write_status(self, resource: dict[str, Any]) -> None:
        """Replace status.yaml atomically: a reader sees the old or the new resource. Raise OSError, and then keep
        the old one."""
        replace(self.path / STATUS, dumped(resource).encode())

    def clear(self) -> None:
        """Delete what a run left, and nothing else. Raise Refusal if something cannot be deleted."""
        try:
            for name in OURS:
                target = self.path / name
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
        except OSError as error:
            place = error.filename or self.path
            raise Refusal(f"{place}: cannot be deleted: {why(error)}; choose another --out") from None


def read_run(out: Path) -> dict[str, Any]:
    """Return the resource of the run in this directory. Raise Refusal if there is none."""
    try:
        return _read(out)
    except FileNotFoundError:
        inside = sorted(file.parent for file in out.glob(f"*/{STATUS}"))
        hint = f", such as {inside[0]}" if inside else f", with its {STATUS}"
        raise Refusal(f"{out}: holds no run; the output folder of a run is expected{hint}") from None


def look(out: Path) -> tuple[dict[str, Any], bool]:
    """Return the resource of the run in this directory, and whether the run goes on. Raise Refusal if there is none."""
    # This is read first, so that the state that a run left at its end is read after the end.
    goes_on = is_held(out)
    return read_run(out), goes_on


def is_held(path: Path) -> bool:
    """Return whether a run uses the directory now. Raise Refusal if that cannot be known."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return False  # `read_run` says so.
    except OSError as error:
        raise Refusal(f"{path}: can't be read: {why(error)}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def read_status(path: Path, *, fresh: bool = False) -> dict[str, Any] | None:
    """Return the resource of the run in `path`; None if there was none. `fresh`: what a run left there will be deleted.
    Raise Refusal if the path cannot become an output folder."""
    try:
        return _read(path)
    except FileNotFoundError:
        held = _names_in(path)
        if held - set(OURS):
            raise Refusal(f"{path}: holds other files and no {STATUS}; an empty or a new folder is expected") from None
        if held and not fresh:
            # A command with --fresh was stopped before everything was deleted.
            raise Refusal(f"{path}: holds a part of a run, and no {STATUS}; --fresh deletes that part") from None
        return None


def _names_in(path: Path) -> set[str]:
    """Return the names of what is in a directory; none if there is no directory. Raise Refusal."""
    try:
        return set(os.listdir(path))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise Refusal(f"{path}: can't be read: {why(error)}") from None


def _read(path: Path) -> dict[str, Any]:
    """Return the resource. Raise FileNotFoundError if there is no status, and Refusal if it cannot be read."""
    file = path / STATUS
    try:
        resource = yaml.load(file.read_text(encoding="utf-8"), Loader=_loader())
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        raise Refusal(f"{path}: is not a folder") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = why(error) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise Refusal(f"{file}: cannot be read: {reason}") from None
    if not _is_job(resource):
        raise Refusal(f"{file}: is not the status of a {JOB_KIND}")
    return resource


def _is_job(resource: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this has what every stored job has, in any version."""
    if not isinstance(resource, dict) or resource.get("kind") != JOB_KIND:
        return False
    meta, others = resource.get("metadata"), (resource.get("spec"), resource.get("status", {}))
    return (
        isinstance(meta, dict) and isinstance(meta.get("name"), str) and all(isinstance(part, dict) for part in others)
    )


def dumped(value: Any) -> str:
    return str(yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110))


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _dumper() -> Any:
    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)
