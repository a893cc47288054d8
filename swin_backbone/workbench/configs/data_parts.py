"""The data of a config: its data sets and metrics, and their files."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from mmengine.config import Config

from ...openmmlab.config_parts import walk


def list_dataset_configs(cfg: Config, phase: str) -> list[tuple[str, dict[str, Any]]]:
    """Return keys and configs of the data sets of 'train', 'val' or 'test'; an empty list without the phase's loader.

    Raises:
        ValueError: if a key has no data set, naming the key.
    """
    loader = cfg.get(f'{phase}_dataloader')
    if not isinstance(loader, dict):
        return []
    return list(iter_dataset_configs(loader.get('dataset'), f'{phase}_dataloader.dataset'))


def find_tested_dataset(cfg: Config) -> Any:
    """Return the config of the first data set of the test, without its wrappers, as a part of `cfg`.

    Raises:
        ValueError: for a config without a data set for the test.
    """
    datasets = list_dataset_configs(cfg, 'test')
    if not datasets:
        raise ValueError('the config has no data set in test_dataloader, whose pipeline prepares the pictures')
    return datasets[0][1]


def iter_dataset_configs(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield keys and configs of the data sets in a part of a config, without their wrappers.

    Raises:
        ValueError: if a key has no data set, naming the key.
    """
    for key, part in walk(node, where, lambda name, _: name in ('dataset', 'datasets') or name.isdecimal()):
        if not isinstance(part, (dict, list, tuple)):
            raise ValueError(f'{key} takes a data set, as dict(type=...), got {part!r}')
        if isinstance(part, dict) and not ('dataset' in part or 'datasets' in part):
            yield key, part


def list_metric_configs(cfg: Config, phase: str) -> list[tuple[str, dict[str, Any]]]:
    """Return keys and configs of the metrics of 'train', 'val' or 'test'."""
    return list(iter_metric_configs(cfg.get(f'{phase}_evaluator'), f'{phase}_evaluator'))


def iter_metric_configs(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield keys and configs of the metrics in a part of a config, without their evaluators."""
    for key, part in walk(node, where, lambda name, _: name == 'metrics' or name.isdecimal()):
        if isinstance(part, dict) and 'metrics' not in part:
            yield key, part


def describe_tested_data(cfg: Config) -> str:
    """Return which data a config tests on, in words.

    Scores on the validation set, which chose the checkpoint, are optimistic.
    """
    test, val, train = (list(_iter_paths(cfg, phase)) for phase in ('test', 'val', 'train'))
    name = 'validation' if test == val else 'training' if test == train else 'test'
    return f'the {name} set, {", ".join(test)}'


def _iter_paths(cfg: Config, phase: str) -> Iterator[str]:
    for _, dataset in list_dataset_configs(cfg, phase):
        prefix = dataset.get('data_prefix') or ''
        first = next(iter(prefix.values()), '') if isinstance(prefix, dict) else prefix
        yield os.path.join(dataset.get('data_root') or '', dataset.get('ann_file') or first)


def find_annotation_file(node: dict[str, Any]) -> Optional[str]:
    """Return the path of the annotation file of a data set or metric, if it is on a local disk."""
    path = node.get('ann_file')
    if not isinstance(path, str) or not path or '://' in path or node.get('backend_args'):
        return None
    return os.path.join(node.get('data_root') or '', path)


def require_data(cfg: Config, phases: Sequence[str]) -> None:
    """Raise an error for missing files of data sets, and for wrong classes.

    Args:
        phases: some of 'train', 'val' and 'test'. The config may lack validation, and no other of these. Data sets with
            `backend_args` are remote, and not checked.

    Raises:
        ValueError: naming the key.
    """
    for phase in phases:
        datasets = list_dataset_configs(cfg, phase)
        if not datasets and phase != 'val':
            raise ValueError(f'the config has no data set in {phase}_dataloader')
        for where, dataset in datasets:
            classes = (dataset.get('metainfo') or {}).get('classes')
            if isinstance(classes, str) and not os.path.isfile(classes):  # ('person'), which mmengine takes for letters
                raise ValueError(f'{where}.metainfo.classes takes a list of names, or a file of them, got {classes!r}')
            if not dataset.get('backend_args'):
                root = dataset.get('data_root') or ''
                stated = {key: dataset.get(key) for key in ('ann_file', 'data_prefix')}
                for key, path in walk(stated):
                    if isinstance(path, str) and path:  # joined as in mmengine's BaseDataset
                        _require(os.path.join(root, path), f'{where}.{key}', f'{where}.data_root')
                if root:
                    _require(root, f'{where}.data_root', f'{where}.data_root')
        for where, metric in list_metric_configs(cfg, phase):
            file = find_annotation_file(metric)
            if file:
                _require(file, f'{where}.ann_file', f'{where}.ann_file')


def _require(path: str, key: str, setting: str) -> None:
    if '://' not in path and not os.path.exists(path):
        raise ValueError(
            f'there is no {path}, where {key} expects data. Put the data there, or set --cfg-options {setting}=...'
        )
