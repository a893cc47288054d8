"""The data sets of a config, each checked and built once."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, METRICS, DefaultScope

from ...checks import DataError
from ...openmmlab.config_parts import find_class, walk
from ...openmmlab.errors import describe_error
from ..configs.data_parts import find_annotation_file, iter_dataset_configs, iter_metric_configs, require_data
from .annotations import find_format, require_annotations, require_classes, uses_masks

NOTHING_LEFT = 'need at least one array to concatenate'  # mmengine's message for an empty data set


class BuiltDatasets:
    """The data sets of a config. Each is checked and built at its first use: mmdet reads an annotation file once.

    Args:
        cfg: the resolved config.
        fatal_faults: fields of Annotations whose faults raise DataError, besides `errors`. () lets a tool list the
            other faults.

    Attributes:
        with_masks: whether the config trains or tests on the masks of objects.
    """

    def __init__(self, cfg: Config, fatal_faults: Sequence[str] = ('masks',)):
        self.cfg, self.fatal_faults = cfg, fatal_faults
        self.with_masks = uses_masks(cfg)
        self._built: dict[str, list[tuple[Any, Any]]] = {}  # configs and data sets by phase

    def build_phase(self, phase: str) -> Any:
        """Return the data set of 'train', 'val' or 'test', with its wrappers.

        Raises:
            ValueError: if a file or folder is missing, with the key.
            DataError: if the data set cannot be built, or its annotations are wrong.
        """
        require_data(self.cfg, (phase,))
        return self.build(phase, self.cfg[f'{phase}_dataloader'].dataset)

    def build(self, phase: str, config: Any) -> Any:
        """Return the data set of a config, with its wrappers. Equal configs of a phase share one.

        Raises:
            DataError: see `build_phase`.
        """
        for built_config, dataset in self._built.get(phase, ()):
            if built_config == config:
                return dataset
        for _, base in iter_dataset_configs(config, 'dataset'):
            path, form = find_annotation_file(base), find_format(find_class(base))
            if path and form:
                require_annotations(path, form, self.with_masks, self.fatal_faults)
                require_classes(base, self.with_masks)
        prepared = self._build_bases(phase, config)
        with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')):
            try:
                dataset = DATASETS.build(prepared)
                if hasattr(dataset, 'full_init'):
                    dataset.full_init()
            except Exception as error:
                raise make_build_error(config, error) from error
        self._built.setdefault(phase, []).append((copy.deepcopy(config), dataset))
        return dataset

    def _build_bases(self, phase: str, config: Any) -> Any:
        """Return a config to build. The data sets inside its wrappers are built."""
        prepared = copy.deepcopy(config)
        nested = walk(prepared, enters=lambda name, _: name in ('dataset', 'datasets') or name.isdecimal())
        for wrapper in [part for _, part in nested if isinstance(part, dict)]:
            for name in ('dataset', 'datasets'):
                inner = wrapper.get(name)
                if isinstance(inner, (list, tuple)):
                    wrapper[name] = [self._build_base(phase, part) for part in inner]
                elif inner is not None:
                    wrapper[name] = self._build_base(phase, inner)
        return prepared

    def _build_base(self, phase: str, config: Any) -> Any:
        is_base = isinstance(config, dict) and not ('dataset' in config or 'datasets' in config)
        return self.build(phase, config) if is_base else config

    def check_evaluator(self, evaluator: Any) -> None:
        """Check the annotation files of a config's metrics before pycocotools reads them.

        Raises:
            DataError: with the wrong annotations.
        """
        for _, metric in iter_metric_configs(evaluator, 'evaluator'):
            path, form = find_annotation_file(metric), find_format(find_class(metric, METRICS))
            if path and form:
                require_annotations(path, form, self.with_masks, ('masks', 'in_evaluation'))


def iter_base_datasets(dataset: Any) -> Iterator[BaseDataset]:
    """Yield the data sets inside wrappers that repeat, join, mix or cut them."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    single = [getattr(dataset, name) for name in ('dataset', '_dataset') if hasattr(dataset, name)]
    for inner in getattr(dataset, 'datasets', single):
        yield from iter_base_datasets(inner)


def make_build_error(dataset: Any, error: Exception) -> DataError:
    """Return the error of a data set that could not be built, with the wrong file if there is one."""
    if isinstance(error, DataError):
        return error
    if NOTHING_LEFT in str(error):
        base = next(base for _, base in iter_dataset_configs(dataset, 'dataset'))
        where = find_annotation_file(base) or Path(
            base.get('data_root') or '', base.get('data_prefix', {}).get('img_path', '')
        )
        setting = 'filter_cfg' if find_format(find_class(base)) else 'img_suffix'
        return DataError(f'no picture of {where} is left with {setting}={base.get(setting)!r}')
    return DataError(f'the data set cannot be built: {describe_error(error)}')
