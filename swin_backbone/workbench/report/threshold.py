"""Store the best threshold of a report with the model, whose predictions take it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from ...checkpoints import read_checkpoint
from ...whole_files import write_whole_by
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
        is_manifest = path.name == MANIFEST
        contents: Any = json.loads(path.read_bytes()) if is_manifest else read_checkpoint(path)
        if is_manifest:
            contents['score_thr'] = threshold
        else:
            contents['meta']['best_score_thr'] = threshold

        def write(partial: Path) -> None:
            if is_manifest:
                partial.write_text(f'{json.dumps(contents, indent=2)}\n', encoding='utf-8')
            else:
                torch.save(contents, partial)
            shutil.copystat(path, partial)

        write_whole_by(path, write)
    except (OSError, KeyError, TypeError):  # TypeError: meta is None
        return f'{given}: not stored, as {checkpoint} has no place for it or may not be written; see --score-thr'
    return f'{given}: stored in {path}, for tools/infer.py and predict'
