"""Finished tiles of a picture on disk: a killed run continues, and the shards of several processes are merged.

The folder of a picture has a file for each finished tile, and `settings.json`. Each file is written in one step.
Names of tiles have a digest of the settings: tiles of other settings are never read. After the merge, the tiles are
deleted, and there is the empty file `merged`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...whole_files import write_whole

MERGE_S = 5  # seconds in which another process begins a shard


class FinishedTiles:
    """The finished tiles of a picture.

    Args:
        folder: folder of the tiles.
        settings: everything that the results depend on.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.folder = folder
        self._file, self._merged = folder / 'settings.json', folder / 'merged'
        self._settings = json.dumps(settings).encode()
        self._digest = hashlib.sha256(self._settings).hexdigest()[:16]

    def make_path(self, index: int) -> Path:
        """Return the path of a tile."""
        return self.folder / f'{self._digest}-{index}.tile'

    @contextmanager
    def lock(self, shard: int, count: int) -> Iterator[None]:
        """Lock a shard against other processes.

        Args:
            shard: index of the shard, 0 for all tiles.
            count: number of shards, 1 for all tiles.

        Raises:
            ValueError: if another process works on tiles of the shard, also as part of another division, or merges.
        """
        with ExitStack() as stack:
            with self.lock_merge():
                for path in self.folder.glob('*-of-*.lock'):
                    other, others = map(int, path.stem.split('-of-'))
                    if shard * others < (other + 1) * count and other * count < (shard + 1) * others:
                        with self._acquire(path):
                            pass
                stack.enter_context(self._acquire(self.folder / f'{shard}-of-{count}.lock'))
            yield

    def lock_merge(self) -> AbstractContextManager[Any]:
        """Return a context in which no other process begins a shard or merges. Raises ValueError if one merges."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._acquire(self.folder / 'merge.lock', MERGE_S)

    def _acquire(self, path: Path, timeout: float = 0) -> AbstractContextManager[Any]:
        try:
            return FileLock(path).acquire(timeout=timeout)
        except Timeout:
            raise ValueError(f'another process works on {path}: wait for it, or end it') from None

    def begin(self, tiles: range, resume: bool, overwrite: bool) -> int:
        """Return the number of finished tiles of a shard, after which a run continues: 0 without `resume`.

        Raises:
            ValueError: if there are tiles of other settings and `overwrite` is not set, or finished tiles and neither
                `resume` nor `overwrite` is set.
        """
        if overwrite:
            for path in map(self.make_path, tiles):
                path.unlink(missing_ok=True)
        elif resume or any(self.folder.glob('*.tile')):
            self.require_same()
        done = next((count for count, index in enumerate(tiles) if not self.make_path(index).exists()), len(tiles))
        if done and not resume:
            raise ValueError(
                f'{self.folder} has finished tiles of this picture: --resume (in Python resume=True) goes on, '
                '--overwrite (overwrite=True) begins again'
            )
        self._merged.unlink(missing_ok=True)
        write_whole(self._file, self._settings)
        return done

    def require_same(self) -> None:
        """Raise ValueError if the folder has other settings, with the difference."""
        current = json.loads(self._settings)
        begun = json.loads(self._file.read_bytes()) if self._file.exists() else current
        differences = [
            _describe_difference(key, begun.get(key), value)
            for key, value in current.items()
            if begun.get(key) != value
        ]
        if differences:
            raise ValueError(
                f'{self.folder} was begun with {", ".join(differences)}: take the same or another --out-dir, '
                'or begin again by --overwrite'
            )

    def require_all(self, count: int) -> None:
        """Raise ValueError unless all tiles of a picture are there, finished with the same settings."""
        self.require_same()
        if self._merged.exists():
            raise ValueError(f'the tiles in {self.folder} were merged before, and are deleted: --merge is not needed')
        finished = sum(self.make_path(index).exists() for index in range(count))
        if finished < count:
            raise ValueError(f'{self.folder} has {finished} of {count} tiles: run all shards, or --resume them')

    def is_begun(self) -> bool:
        """Return whether a run has begun."""
        return self._file.exists()

    def is_merged(self) -> bool:
        """Return whether the tiles were merged into the results.

        Raises:
            ValueError: if they had other settings.
        """
        self.require_same()
        return self._merged.exists()

    def mark_merged(self) -> None:
        """Delete the tiles, and keep the settings."""
        self._merged.touch()
        for path in self.folder.glob('*.tile'):
            path.unlink(missing_ok=True)


def _describe_difference(key: str, begun: Any, current: Any) -> str:
    """Return words on two values of a setting: numbers, or digests and thresholds by class, which are not shown."""
    if isinstance(begun, (str, dict)) or isinstance(current, (str, dict)):
        return f'another {key}'
    return f'{key} {begun}, not {current}'
