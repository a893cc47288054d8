"""Finished tiles of a picture on disk: a killed run continues, and the shards of several processes are merged.

Each shard has two growing files:

    I-of-N.jsonl    the settings, then a line for each finished tile: lengths and checksums of the tile's blocks
    I-of-N.blocks   the blocks of the tiles, one after another

Tiles are finished in order. Bytes behind the last whole line are of an unfinished tile. A resumed run cuts them off.
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

EVERY = 1.0  # seconds between writes to the disk; a kill loses the tiles since the last


class ResultBlock(NamedTuple):
    """A part of the results: number in the picture, and bytes."""

    number: int
    data: bytes


class Done(NamedTuple):
    """A finished tile: number, skipped as blank or not, and number, offset, length and CRC of each block."""

    tile: int
    blank: bool
    blocks: list[tuple[int, int, int, int]]


class Part:
    """The finished tiles of a shard. As a context, it locks the shard against other processes.

    Args:
        folder: of the shards of one picture.
        shard: number from 0, and number of shards.
        tiles: of the shard.
        settings: everything that the results depend on.

    Attributes:
        done: number of finished tiles.
        blanks: number of blank tiles among them.
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
        """Open the files, and continue after the last finished tile if `resume` is set.

        Raises:
            ValueError: if there are finished tiles of another model or other settings, or `resume` and `overwrite` are
                not set, or a file is no manifest.
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
            self.blocks_path.write_bytes(b'')  # before the lines: lines without blocks mean a merged picture
            write_whole(self.lines_path, _line(dict(settings=self.settings)))
            end = self.lines_path.stat().st_size
        os.truncate(self.lines_path, end)
        os.truncate(self.blocks_path, self._length)
        self._lines = self._files.enter_context(self.lines_path.open('ab'))
        self._blocks = self._files.enter_context(self.blocks_path.open('ab'))

    def is_merged(self) -> bool:
        """Return whether the blocks were merged into the results, and deleted."""
        return self.lines_path.exists() and not self.blocks_path.exists()

    def add(self, blocks: Sequence[ResultBlock], blank: bool = False) -> None:
        """Finish the next tile.

        Raises:
            OSError: if the disk is full.
        """
        sums = [[block.number, len(block.data), zlib.crc32(block.data)] for block in blocks]
        self._pending.append(_line(dict(tile=self.tiles[self.done], blank=blank, blocks=sums)))
        self._write(self._blocks, self.blocks_path, b''.join(block.data for block in blocks))
        self.done += 1
        self.blanks += blank
        if time.monotonic() - self._saved > EVERY:
            self.save()

    def save(self) -> None:
        """Write the finished tiles to the disk: first the blocks, then the lines."""
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
        """Raise ValueError if the manifest has other settings, with the difference, or is no manifest."""
        try:
            with open(self.lines_path, 'rb') as file:
                settings = json.loads(file.readline())['settings']
            keys = [key for key in {**self.settings, **settings} if settings.get(key) != self.settings.get(key)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{self.lines_path} is no manifest of tiles: move it away ({error!r})') from error
        if keys:
            difference = ', '.join(
                f'{key} {settings.get(key)!s:.12}, not {self.settings.get(key)!s:.12}' for key in keys
            )
            raise ValueError(
                f'{self.lines_path} was begun with {difference}: take the same or another --out-dir, or begin again by '
                '--overwrite'
            )

    def records(self) -> Iterator[Done]:
        """Yield the finished tiles, in order."""
        for done, _ in self._lines_and_ends():
            yield done

    def _lines_and_ends(self) -> Iterator[tuple[Done, int]]:
        """Yield each finished tile, and the end of its line."""
        offset = 0
        with open(self.lines_path, 'rb') as file:
            end = len(file.readline())
            for tile, line in zip(self.tiles, file):
                try:
                    entry = json.loads(line)
                    blocks = []
                    for number, length, crc in entry['blocks']:
                        blocks.append((number, offset, length, crc))
                        offset += length
                    is_next = line.endswith(b'\n') and entry['tile'] == tile
                except (ValueError, KeyError, TypeError):
                    return
                if not is_next:
                    return
                end += len(line)
                yield Done(tile, bool(entry['blank']), blocks), end

    def _skim(self) -> int:
        """Count the finished tiles with undamaged blocks, and return the end of the last tile's line."""
        if not self.blocks_path.exists():
            return 0
        with open(self.lines_path, 'rb') as file:
            end = len(file.readline())
        with open(self.blocks_path, 'rb') as file:
            for done, line_end in self._lines_and_ends():
                blocks = [(file.read(length), length, crc) for _, _, length, crc in done.blocks]
                if any(len(data) < length or zlib.crc32(data) != crc for data, length, crc in blocks):
                    break
                self.done, self.blanks = self.done + 1, self.blanks + done.blank
                self._length += sum(length for _, length, _ in blocks)
                end = line_end
        return end


def parts_of(folder: Path, grid: Grid, settings: Mapping[str, Any]) -> list[Part]:
    """Return all shards of a picture.

    Raises:
        ValueError: if a shard is missing or unfinished, or of another model or other settings.
    """
    names = sorted(path.stem for path in folder.glob('*-of-*.jsonl'))
    counts = {int(name.rpartition('-')[2]) for name in names if name.rpartition('-')[2].isdigit()}
    if len(counts) != 1:
        raise ValueError(
            f'{folder} must have the shards of one division to be merged, got {", ".join(names) or "none"}'
        )
    (count,) = counts
    parts = []
    for number in range(count):
        part = Part(folder, (number, count), grid.shard(number, count), settings)
        if not part.lines_path.exists():
            raise ValueError(f'{part.lines_path} is missing: run --shard {number}/{count}')
        part.require_same()
        finished = sum(1 for _ in part.records())
        if finished < len(part.tiles) or not part.blocks_path.exists():
            raise ValueError(
                f'{part.lines_path} has {finished} of {len(part.tiles)} tiles: run --shard {number}/{count} --resume'
            )
        parts.append(part)
    return parts


def read_block(file: IO[bytes], offset: int, length: int, crc: int) -> bytes:
    """Return a block of a shard.

    Raises:
        OSError: if the block is damaged.
    """
    file.seek(offset)
    data = file.read(length)
    if zlib.crc32(data) != crc:
        raise OSError(f'{file.name} is damaged at byte {offset}: run its shard again with --overwrite')
    return data


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(',', ':')).encode() + b'\n'
