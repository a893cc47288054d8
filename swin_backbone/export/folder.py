"""The folder of an export: it is whole or not there, and an earlier one is replaced if nothing else is in it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..backends.native.library import NAME as LIBRARY
from ..outputs import RECORD, Outputs
from .graph import ExportError
from .runtime import MANIFEST


@contextmanager
def new_folder(out: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder next to `out`. On success it replaces `out`; on an error it is deleted.

    Args:
        overwrite: replace deploy.json and the model's files in `out` also where no export wrote them.

    Raises:
        ExportError: if `out` is a file, or a folder that is neither empty nor an earlier export, with nothing else.
    """
    if os.path.lexists(out):
        _require_export(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f'.partial-{out.name}-', dir=out.parent))
    try:
        yield partial
        Outputs(partial).adopt(*(path for path in sorted(partial.iterdir()) if path.is_file()))
        partial.chmod(0o755)
        if out.exists():
            former = Path(tempfile.mkdtemp(prefix=f'.former-{out.name}-', dir=out.parent))
            out.replace(former / 'was')
            partial.replace(out)
            shutil.rmtree(former)
        else:
            partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_export(out: Path, overwrite: bool) -> None:
    wanted = f'--out-dir takes a new folder, or one of an earlier export, got {str(out)!r}'
    if not out.is_dir() or out.is_symlink():
        raise ExportError(wanted)
    outputs = Outputs(out)
    for path in sorted(out.iterdir()):
        is_ours = path.is_file() and (path.name in (MANIFEST, LIBRARY) or path.match('model.*'))
        if path.name != RECORD and not outputs.is_own(path) and not (overwrite and is_ours):
            allowed = ', or allow it by --overwrite' if is_ours else ''
            raise ExportError(f'{wanted}, where no export wrote {path.name}, or it was changed: move it{allowed}')
