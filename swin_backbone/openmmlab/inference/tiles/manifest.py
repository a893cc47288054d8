"""Finished tiles of a picture on disk: a killed run continues, and the shards of several processes are merged.

A shard has a growing file, I-of-N.tiles: a line with the settings, then for each finished tile a line (tile, blank,
numbers and lengths of the blocks, CRC) and the bytes of the blocks. Tiles are finished in order. A resumed run cuts off
an unfinished or damaged tile, and all tiles behind. A merged shard has no tiles, and the line `MERGED` in their place.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

from filelock import FileLock, Timeout

from ....whole_files import write_whole
from .grid import Grid

EVERY = 1.0  # seconds between writes to the disk; a kill loses the tiles since the last
MERGED = b'"merged"\n'


class ResultBlock(NamedTuple):
    """A part of the results: number in the picture, bytes, and position in the file of the shard."""

    number: int
    data: bytes
    offset: int = 0


class Done(NamedTuple):
    """A finished tile: skipped as blank or not, blocks, and end in the file of the shard."""

    tile: int
    blank: bool
    blocks: list[ResultBlock]
    end: int


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
        self.tiles = tiles
        self.settings = json.loads(json.dumps(dict(settings)))
        self.path = folder / '{}-of-{}.tiles'.format(*shard)
        self.lock = FileLock(self.path.with_suffix('.lock'))
        self.done = self.blanks = 0
        self._file: Optional[IO[bytes]] = None
        self._saved = 0.0

    def __enter__(self) -> 'Part':
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f'another process works on {self.path}: wait for it, or end it') from None
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self.lock.release()

    def begin(self, resume: bool, overwrite: bool) -> None:
        """Open the file, and continue after the last finished tile if `resume` is set.

        Raises:
            ValueError: if there are finished tiles of another model or other settings, or `resume` and `overwrite` are
                not set, or the file is no manifest.
        """
        if self.path.exists() and not overwrite:
            self.require_same()
            if not resume:
                raise ValueError(
                    f'{self.path} has finished tiles of this picture: --resume (in Python resume=True) goes on, '
                    '--overwrite (overwrite=True) begins again'
                )
        else:
            write_whole(self.path, _line(dict(settings=self.settings)))
        self._file = open(self.path, 'r+b')  # noqa: SIM115 - __exit__ closes the file
        end = len(self._file.readline())
        for tile in self.records():
            self.done, self.blanks, end = self.done + 1, self.blanks + tile.blank, tile.end
        self._file.truncate(end)
        self._file.seek(end)

    def is_merged(self) -> bool:
        """Return whether the tiles were merged into the results."""
        if not self.path.exists():
            return False
        with open(self.path, 'rb') as file:
            file.readline()
            return file.readline(len(MERGED)) == MERGED

    def mark_merged(self) -> None:
        """Delete the tiles, and keep the settings."""
        write_whole(self.path, _line(dict(settings=self.settings)) + MERGED)

    def add(self, blocks: Sequence[ResultBlock], blank: bool = False) -> None:
        """Finish the next tile.

        Raises:
            OSError: if the disk is full.
        """
        assert self._file is not None
        entry = [self.tiles[self.done], blank, [[block.number, len(block.data)] for block in blocks]]
        data = b''.join(block.data for block in blocks)
        self._file.write(_line([*entry, _checksum(entry, data)]) + data)
        self.done += 1
        self.blanks += blank
        if time.monotonic() - self._saved > EVERY:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._saved = time.monotonic()

    def require_same(self) -> None:
        """Raise ValueError if the manifest has other settings, with the difference, or is no manifest."""
        try:
            with open(self.path, 'rb') as file:
                settings = json.loads(file.readline())['settings']
            keys = [key for key in {**self.settings, **settings} if settings.get(key) != self.settings.get(key)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{self.path} is no manifest of tiles: move it away ({error!r})') from error
        if keys:
            difference = ', '.join(
                f'{key} {settings.get(key)!s:.12}, not {self.settings.get(key)!s:.12}' for key in keys
            )
            raise ValueError(
                f'{self.path} was begun with {difference}: take the same or another --out-dir, or begin again by '
                '--overwrite'
            )

    def records(self) -> Iterator[Done]:
        """Yield the finished tiles in order, up to an unfinished or damaged tile."""
        with open(self.path, 'rb') as file:
            file.readline()
            for tile in self.tiles:
                try:
                    *entry, checksum = json.loads(file.readline())
                    number, blank, sizes = entry
                    begin, data = file.tell(), file.read(sum(length for _, length in sizes))
                except (ValueError, TypeError, OverflowError, MemoryError):
                    return
                if number != tile or _checksum(entry, data) != checksum:
                    return
                blocks, end = [], 0
                for block, length in sizes:
                    blocks.append(ResultBlock(block, data[end : end + length], begin + end))
                    end += length
                yield Done(tile, blank, blocks, begin + end)


def parts_of(folder: Path, grid: Grid, settings: Mapping[str, Any]) -> list[Part]:
    """Return all shards of a picture.

    Raises:
        ValueError: if a shard is missing or unfinished, or of another model or other settings.
    """
    names = sorted(path.stem for path in folder.glob('*-of-*.tiles'))
    counts = {int(name.rpartition('-')[2]) for name in names if name.rpartition('-')[2].isdigit()}
    if len(counts) != 1:
        raise ValueError(
            f'{folder} must have the shards of one division to be merged, got {", ".join(names) or "none"}'
        )
    (count,) = counts
    parts = []
    for number in range(count):
        part = Part(folder, (number, count), grid.shard(number, count), settings)
        if not part.path.exists():
            raise ValueError(f'{part.path} is missing: run --shard {number}/{count}')
        part.require_same()
        finished = sum(1 for _ in part.records())
        if finished < len(part.tiles):
            raise ValueError(
                f'{part.path} has {finished} of {len(part.tiles)} tiles: run --shard {number}/{count} --resume'
            )
        parts.append(part)
    return parts


def _line(data: object) -> bytes:
    return json.dumps(data, separators=(',', ':')).encode() + b'\n'


def _checksum(entry: Sequence[Any], data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_line(entry)))
