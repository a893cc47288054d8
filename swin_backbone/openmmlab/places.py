"""Folders and files that a user names: made or found, or a sentence that says what is wrong with them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

from mmengine.config import Config


def make_folder(path: Union[str, Path], argument: str) -> Path:
    """Make a folder to write to, unless it is there.

    Raises:
        ValueError: if it cannot be made or written to, naming the argument.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f'{argument} takes a folder, got {str(path)!r}, which is a file') from None
    except OSError as error:
        raise ValueError(f'{argument}: the folder {str(path)!r} cannot be made: {error.strerror}') from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f'{argument}: the folder {str(path)!r} cannot be written to')
    return path


def datasets_of(node: Any, where: str) -> Iterator[tuple[str, dict]]:
    """The data sets of a config with the keys where they stand, without the wrappers around them."""
    if isinstance(node, (list, tuple)):
        for index, child in enumerate(node):
            yield from datasets_of(child, f'{where}.{index}')
    elif 'dataset' in node:
        yield from datasets_of(node['dataset'], f'{where}.dataset')
    elif 'datasets' in node:
        yield from datasets_of(node['datasets'], f'{where}.datasets')
    else:
        yield where, node


def require_data(cfg: Config, phases: Sequence[str]) -> None:
    """See that files and folders of the data sets are there, before anything is built.

    Args:
        phases: of 'train', 'val' and 'test'. Data sets with a `backend_args` are not on this machine's disk.

    Raises:
        ValueError: if one is not there, naming the key that expects it.
    """
    for phase in phases:
        loader = cfg.get(f'{phase}_dataloader')
        if not isinstance(loader, dict) or 'dataset' not in loader:
            continue
        for where, dataset in datasets_of(loader['dataset'], f'{phase}_dataloader.dataset'):
            if dataset.get('backend_args'):
                continue
            for key, path in _expected(dataset):
                _require(path, f'{where}.{key}', f'{where}.data_root')
        evaluator = cfg.get(f'{phase}_evaluator')
        if isinstance(evaluator, dict) and evaluator.get('ann_file') and not evaluator.get('backend_args'):
            _require(evaluator['ann_file'], f'{phase}_evaluator.ann_file', f'{phase}_evaluator.ann_file')


def _require(path: str, key: str, setting: str) -> None:
    if '://' not in path and not Path(path).exists():
        raise ValueError(
            f'there is no {path}, where {key} expects data. Put it there, or say where it is: '
            f'--cfg-options {setting}=...'
        )


def _expected(dataset: dict) -> Iterator[tuple[str, str]]:
    """The paths that a data set names, with their keys, as mmengine's BaseDataset joins them."""
    root = dataset.get('data_root') or ''
    named = [('ann_file', dataset.get('ann_file'))]
    prefix = dataset.get('data_prefix') or {}
    named += (
        [(f'data_prefix.{name}', path) for name, path in prefix.items()]
        if isinstance(prefix, dict)
        else [
            ('data_prefix', prefix)  # of mmpretrain
        ]
    )
    for key, path in named:
        if isinstance(path, str) and path:
            yield key, os.path.join(root, path)  # which takes an absolute path as it is
    if root:
        yield 'data_root', root
