"""What is finished of a picture's tiles, so that a run that was killed goes on where it was, and shards come together.

Each shard has two files that only grow:

    I-of-N.jsonl    the settings, then a line for each finished tile: the lengths and checksums of what it made
    I-of-N.blocks   what the tiles made, one behind the other

Tiles are finished in their order. What is behind the last line, or a line that is not whole, is of a tile that was not
finished, and is cut off when the shard goes on.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

from filelock import FileLock, Timeout

from ....whole_files import write_whole
from .grid import Grid

EVERY = 1.0  # seconds: what finished since is put on the disk together, and is done again if it was not


class Block(NamedTuple):
    """Something that a tile made.

    Attributes:
        number: among those of all tiles.
        data: its bytes.
    """

    number: int
    data: bytes


class Done(NamedTuple):
    """A finished tile: its number, whether it was skipped as blank, and of each block number, offset, length, CRC."""

    tile: int
    blank: bool
    blocks: list[tuple[int, int, int, int]]


class Part:
    """The finished tiles of one shard. A context: while it lasts, no other process has the shard.

    Args:
        folder: of the shards of one picture.
        shard: its number from 0, and how many there are.
        tiles: those of the shard.
        settings: whatever the results depend on.

    Attributes:
        done: the tiles that are finished.
        blanks: how many of them were blank.
    """

    def __init__(self, folder: Path, shard: tuple[int, int], tiles: range, settings: Mapping[str, Any]):
        self.folder, self.tiles = folder, tiles
        self.settings = json.loads(json.dumps(dict(settings)))
        name = '{}-of-{}'.format(*shard)
        self.lines_path, self.blocks_path = folder / f'{name}.jsonl', folder / f'{name}.blocks'
        self.lock = FileLock(folder / f'{name}.lock')
        self.done = self.blanks = self._length = 0
        self._files = ExitStack()
        self._lines: IO[bytes]
        self._blocks: IO[bytes]
        self._pending: list[bytes] = []
        self._saved = 0.0

    def __enter__(self) -> 'Part':
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f'another process works on {self.lines_path}: wait for it, or end it') from None
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.save()
        finally:
            self._files.close()
            self.lock.release()

    def begin(self, resume: bool, overwrite: bool) -> None:
        """Go on after the last finished tile, or begin.

        Raises:
            ValueError: if there is a manifest of another model or other settings, or one that may not be continued; or
                files that are none.
        """
        end = 0
        if self.lines_path.exists() and not overwrite:
            self.require_same()
            if not resume:
                raise ValueError(
                    f'{self.lines_path} has finished tiles of this picture: --resume (in Python resume=True) goes on, '
                    '--overwrite (overwrite=True) begins again'
                )
            end = self._skim()
        elif self.blocks_path.exists() and self.blocks_path.stat().st_size and not overwrite:
            raise ValueError(f'{self.blocks_path} is there, without {self.lines_path.name}: move it away')
        if not end:
            self.blocks_path.write_bytes(b'')  # first: lines without blocks are of what was merged
            write_whole(self.lines_path, _line(dict(settings=self.settings)))
            end = self.lines_path.stat().st_size
        os.truncate(self.lines_path, end)
        os.truncate(self.blocks_path, self._length)
        self._lines = self._files.enter_context(self.lines_path.open('ab'))
        self._blocks = self._files.enter_context(self.blocks_path.open('ab'))

    def is_merged(self) -> bool:
        """Whether what the tiles made was merged, and deleted then."""
        return self.lines_path.exists() and not self.blocks_path.exists()

    def add(self, blocks: Sequence[Block], blank: bool = False) -> None:
        """Finish the next tile.

        Raises:
            OSError: if it cannot be written.
        """
        made = [[block.number, len(block.data), zlib.crc32(block.data)] for block in blocks]
        self._pending.append(_line(dict(tile=self.tiles[self.done], blank=blank, blocks=made)))
        self._write(self._blocks, self.blocks_path, b''.join(block.data for block in blocks))
        self.done += 1
        self.blanks += blank
        if time.monotonic() - self._saved > EVERY:
            self.save()

    def save(self) -> None:
        """Put what is finished on the disk: what tiles made before the lines that say so."""
        if self._pending:
            self._write(self._blocks, self.blocks_path, b'', flush=True)
            self._write(self._lines, self.lines_path, b''.join(self._pending), flush=True)
            self._pending.clear()
        self._saved = time.monotonic()

    @staticmethod
    def _write(file: IO[bytes], path: Path, data: bytes, flush: bool = False) -> None:
        try:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(path)
            raise

    def require_same(self) -> None:
        """See that the manifest is of the same model and settings.

        Raises:
            ValueError: if not, naming what differs, or if it is no manifest.
        """
        try:
            with open(self.lines_path, 'rb') as file:
                found = json.loads(file.readline())['settings']
            differ = [key for key in {**self.settings, **found} if found.get(key) != self.settings.get(key)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{self.lines_path} is no manifest of tiles: move it away ({error!r})') from error
        if differ:
            said = ', '.join(f'{key} {_short(found.get(key))}, not {_short(self.settings.get(key))}' for key in differ)
            raise ValueError(
                f'{self.lines_path} was begun with {said}: take the same or another --out-dir, or begin again by '
                '--overwrite'
            )

    def records(self) -> Iterator[Done]:
        """The finished tiles, in their order."""
        for done, _ in self._lines_and_ends():
            yield done

    def _lines_and_ends(self) -> Iterator[tuple[Done, int]]:
        """Each finished tile, and where its line ends."""
        offset = 0
        with open(self.lines_path, 'rb') as file:
            end = len(file.readline())
            for tile, line in zip(self.tiles, file):
                try:
                    found = json.loads(line)
                    blocks = []
                    for number, length, crc in found['blocks']:
                        blocks.append((number, offset, length, crc))
                        offset += length
                    is_next = line.endswith(b'\n') and found['tile'] == tile
                except (ValueError, KeyError, TypeError):
                    return
                if not is_next:
                    return
                end += len(line)
                yield Done(tile, bool(found['blank']), blocks), end

    def _skim(self) -> int:
        """Count the finished tiles of which the blocks are there and right; give where the line of the last ends."""
        if not self.blocks_path.exists():
            return 0
        with open(self.lines_path, 'rb') as file:
            end = len(file.readline())
        stored = self.blocks_path.stat().st_size
        with open(self.blocks_path, 'rb') as file:
            for done, line_end in self._lines_and_ends():
                length = sum(block[2] for block in done.blocks)
                if self._length + length > stored:
                    break
                if any(zlib.crc32(file.read(size)) != crc for _, _, size, crc in done.blocks):
                    break
                self.done, self.blanks, self._length = self.done + 1, self.blanks + done.blank, self._length + length
                end = line_end
        return end


def parts_of(folder: Path, grid: Grid, settings: Mapping[str, Any]) -> list[Part]:
    """All shards of a picture, each of which must be whole.

    Raises:
        ValueError: if one is missing or not finished, or is of another model or other settings.
    """
    names = sorted(path.stem for path in folder.glob('*-of-*.jsonl'))
    numbers = {int(name.rpartition('-')[2]) for name in names if name.rpartition('-')[2].isdigit()}
    if len(numbers) != 1:
        found = ', '.join(names) or 'none'
        raise ValueError(f'{folder} must have the shards of one division to be merged, got {found}')
    (of,) = numbers
    parts = []
    for number in range(of):
        part = Part(folder, (number, of), grid.shard(number, of), settings)
        if not part.lines_path.exists():
            raise ValueError(f'{part.lines_path} is missing: run --shard {number}/{of}')
        part.require_same()
        finished = sum(1 for _ in part.records())
        if finished < len(part.tiles) or not part.blocks_path.exists():
            raise ValueError(
                f'{part.lines_path} has {finished} of {len(part.tiles)} tiles: run --shard {number}/{of} --resume'
            )
        parts.append(part)
    return parts


def read_block(file: IO[bytes], offset: int, length: int, crc: int) -> bytes:
    """A block of a shard.

    Raises:
        OSError: if it is not what the tile made.
    """
    file.seek(offset)
    data = file.read(length)
    if zlib.crc32(data) != crc:
        raise OSError(f'{file.name} is damaged at byte {offset}: run its shard again with --overwrite')
    return data


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(',', ':')).encode() + b'\n'


def _short(value: Any) -> str:
    return str(value)[:12]
