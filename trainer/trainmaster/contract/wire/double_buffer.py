"""A record in shared memory that a reader gets whole at any time, while it is written and after its writer was killed.

Two buffers hold the last two records in turn. A buffer is a generation (8 bytes; record n has generation n and lies in
buffer n % 2), a seal (8 bytes: the CRC-32 of the fields, and above it the lower half of the generation) and the fields.

- A writer fills the buffer that does not hold the newest record, in four steps: generation = 0, seal, fields,
  generation = n. One process writes at a time.
- A reader takes the buffer with the higher generation and copies it. The copy counts if the generation is the same
  before and after, and the seal fits. Otherwise the reader tries the other buffer, and then both again.

Why no reader returns a torn record:

- Each step is one operation of CPython. Setting or getting an item of a memoryview of format Q is one aligned store or
  load of 8 bytes, on x86-64 and on arm64. Assigning bytes to a memoryview is a memcpy: its bytes may arrive in any
  order. `struct.pack_into` is not used on shared memory: it fills its range with zeros before it packs.
- x86-64 shows stores to other cores in the order of the program, and loads in that order too. A buffer whose generation
  was n before and after the copy held record n for all of that time. This alone is exact.
- arm64 may reorder both, and Python has no memory barrier. There the seal decides. The generation in it says that it is
  the seal of record n, and the CRC-32 refuses fields that are not all of record n: always if those that differ lie
  within 32 bits, and otherwise but for one mixture in 2^32. Mixtures themselves are rare: the reader must meet a write
  that takes nanoseconds. (To start the CRC from the generation would not do. That is to change the first four bytes of
  the fields by it, and a first field that counts along takes the change back.)
- A writer that is killed leaves one buffer unfinished at most. The other one holds the last complete record. The next
  writer takes its generation from memory, and so it goes on in the unfinished buffer.

There are no locks, and no system calls.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

_TRIES = 100
_GENERATION, _SEAL = 0, 1  # the two words before the fields
_WORDS_BYTES = 16
_LOWER_HALF = 0xFFFFFFFF


class DoubleBuffer:
    """A record in `memory`, whose address is a multiple of 8 bytes. `fields` is a format of `struct`.

    Zeros follow the fields up to the size of the memory, so fields can be added at the end: a reader that knows more
    fields than the writer gets 0 for them, and a reader that knows fewer fields ignores the others.
    """

    def __init__(self, memory: memoryview, fields: str) -> None:
        size = len(memory) // 2
        padding = size - _WORDS_BYTES - struct.calcsize(f"<{fields}")
        self._fields = struct.Struct(f"<{fields}{padding}x")
        self._buffers = (_Buffer(memory[:size]), _Buffer(memory[size:]))
        self._last: tuple[int, tuple[Any, ...]] = 0, ()  # generation and values; one object, which threads may share

    def write(self, *values: Any) -> None:
        """Publish a record. Raises struct.error, and changes nothing, if a value does not fit its field."""
        content = self._fields.pack(*values)
        generation = max(buffer.words[_GENERATION] for buffer in self._buffers) + 1
        self._buffers[generation % 2].fill(generation, content)

    def read(self) -> tuple[Any, ...]:
        """Return the newest whole record, never an older one than this object has returned before.

        A reader that meets a write in each of its tries returns the record that it has read last. Raises ValueError if
        it has read none.
        """
        for _ in range(_TRIES):
            newer, older = self._buffers
            if newer.words[_GENERATION] < older.words[_GENERATION]:
                newer, older = older, newer
            for buffer in (newer, older):
                generation = buffer.words[_GENERATION]
                known, values = self._last
                if generation == known and values:
                    return values
                content = buffer.copy(generation) if generation > known else None
                if content is not None:
                    values = self._fields.unpack(content)
                    self._last = generation, values
                    return values
        if not self._last[1]:
            raise ValueError("the shared memory holds no whole record: its writer has to publish one before it is read")
        return self._last[1]

    def release(self) -> None:
        """Release the memory, so that it can be unmapped."""
        for buffer in self._buffers:
            buffer.release()


class _Buffer:
    def __init__(self, memory: memoryview) -> None:
        self.words = memory[:_WORDS_BYTES].cast("Q")
        self.fields = memory[_WORDS_BYTES:]

    def fill(self, generation: int, content: bytes) -> None:
        self.words[_GENERATION] = 0
        self.words[_SEAL] = _seal(generation, content)
        self.fields[:] = content
        self.words[_GENERATION] = generation

    def copy(self, generation: int) -> bytes | None:
        """Return the fields if they are those of the record `generation`, and whole."""
        seal = self.words[_SEAL]
        content = self.fields.tobytes()
        unchanged = self.words[_GENERATION] == generation
        return content if unchanged and seal == _seal(generation, content) else None

    def release(self) -> None:
        self.words.release()
        self.fields.release()


def _seal(generation: int, content: bytes) -> int:
    return (generation & _LOWER_HALF) << 32 | crc32(content)
