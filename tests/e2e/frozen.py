"""A file system that accepts everything and answers nothing: what a network file system is when its server is gone.

It speaks just enough of the FUSE protocol to be mounted. Processes that ask it for anything wait in the kernel, where
not even SIGKILL reaches them, until it is unmounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_INIT = 26  # the one request that is answered
_ABORT, _DETACH = 1, 2  # MNT_FORCE, MNT_DETACH


@contextlib.contextmanager
def frozen(path: Path) -> Iterator[None]:
    """Mount it over `path`, which is made if it isn't there. Skips the test where that isn't allowed."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"FUSE can't be used here: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _LIBC.mount(b"frozen", os.fsencode(path), b"fuse", 0, options):
        os.close(device)
        pytest.skip(f"FUSE can't be used here: {os.strerror(ctypes.get_errno())}")
    server = threading.Thread(target=_take_requests, args=[device], daemon=True)
    server.start()
    try:
        yield
    finally:
        _LIBC.umount2(os.fsencode(path), _ABORT | _DETACH)  # whoever waits gets an error
        server.join(10)
        os.close(device)


def _take_requests(device: int) -> None:
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return  # it is unmounted
        _, kind, number = struct.unpack_from("<IIQ", request)
        if kind == _INIT:
            # fuse_init_out of protocol 7.31: major, minor, max_readahead, flags, max_background, congestion, max_write
            answer = struct.pack("<IIIIHHI", 7, 31, 0, 0, 1, 1, 4096).ljust(64, b"\0")
            os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, number) + answer)
