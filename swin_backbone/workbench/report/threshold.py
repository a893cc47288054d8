"""Store the best threshold of a report with the model, whose predictions take it."""

import json
import os
import shutil
from pathlib import Path

import torch

from ...checkpoints import read_checkpoint
from ...whole_files import write_whole, write_whole_by
from ..export.predictor import is_exported
from ..export.runtime import MANIFEST


def store_threshold(checkpoint: str, threshold: float) -> str:
    """Store `meta['best_score_thr']` in a checkpoint, or `score_thr` in the deploy.json of an exported folder.

    All other contents, the time of the last change and the permissions stay: `--resume` takes the newest checkpoint.

    Returns:
        A line that says whether the threshold is stored. An address, a file without meta, such as bare weights, and a
        file that may not be written stay as they are.
    """
    path = (Path(checkpoint, MANIFEST) if is_exported(checkpoint) else Path(checkpoint)).resolve()
    given = f'best threshold {threshold:g}'
    try:
        if not (os.access(path, os.W_OK) and path.stat().st_mode & 0o222):  # root may write everything
            raise PermissionError
        if path.name == MANIFEST:
            manifest = dict(json.loads(path.read_bytes()), score_thr=threshold)
            write_whole(path, f'{json.dumps(manifest, indent=2)}\n'.encode())
        else:
            contents = read_checkpoint(path)
            contents['meta']['best_score_thr'] = threshold

            def write(partial: Path) -> None:
                torch.save(contents, partial)
                shutil.copystat(path, partial)

            write_whole_by(path, write)
    except (OSError, KeyError, TypeError):  # TypeError: meta is None
        return f'{given}: not stored, as {checkpoint} has no place for it or may not be written; see --score-thr'
    return f'{given}: stored in {path}, for tools/infer.py and predict'
