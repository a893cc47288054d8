"""Compare the classes of a model with the classes of its data.

A training with a wrong number of classes can run without an error. The toolboxes report other wrong settings
themselves.
"""

import re
from collections.abc import Sequence
from typing import Any

from mmengine.config import Config
from mmengine.registry import DefaultScope

from ...openmmlab.config_files import TOOLBOXES
from ...openmmlab.config_parts import find_class, walk
from ...openmmlab.errors import ConfigError
from .data_parts import list_dataset_configs

CLASS_HEADS = ('bbox_head', 'decode_head', 'head')  # heads with the classes of the data
HEADS_OF_MORE_CLASSES = ('panoptic_fusion_head', 'semantic_head')  # of models with classes of several kinds


def require_class_counts(cfg: Config) -> None:
    """Check that the heads of a model have the number of classes of each data set. Raises: see `require_class_count`.

    A data set of a toolbox with the classes of its METAINFO is left out: trackers are tested on data with more classes
    than their models have.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for phase in ('train', 'val', 'test'):
            for where, dataset in list_dataset_configs(cfg, phase):
                package = getattr(find_class(dataset), '__module__', '').partition('.')[0]
                if package not in TOOLBOXES or _find_named_classes(dataset) is not None:
                    require_class_count(cfg, find_class_names(dataset), where)


def require_class_count(cfg: Config, classes: Sequence[str], where: str) -> None:
    """Compare the heads of a model with the classes of `where`.

    Raises:
        ConfigError: with the key, the value and the allowed values.
    """
    model = cfg.get('model') or {}
    if not classes or 'language_model' in model:
        return
    heads = () if any(name in model for name in HEADS_OF_MORE_CLASSES) else CLASS_HEADS
    for key, head in walk(model, 'model'):
        name = re.sub(r'(\.\d+)+$', '', key).rpartition('.')[2]  # without indices of lists
        is_solo = key == 'model.mask_head' and 'bbox_head' not in model  # elsewhere, unused masks do no harm
        names_of_counts = ['num_classes'] if name in heads or is_solo else ['num_things_classes', 'num_stuff_classes']
        if not isinstance(head, dict) or not all(isinstance(head.get(name), int) for name in names_of_counts):
            continue
        counts = [head[name] for name in names_of_counts]
        if sum(counts) != len(classes):
            raise ConfigError(
                f'{key}.{" + ".join(names_of_counts)} takes {len(classes)}, the classes of {where}, got '
                f'{" + ".join(map(str, counts))}'
            )


def find_class_names(dataset: dict[str, Any]) -> Sequence[str]:
    """Return the names of the classes of a data set's config in the current scope; () without names."""
    classes = _find_named_classes(dataset)
    if classes is None:
        classes = getattr(find_class(dataset), 'METAINFO', {}).get('classes')
    return classes if isinstance(classes, (list, tuple)) else ()


def _find_named_classes(dataset: dict[str, Any]) -> Any:
    metainfo = dataset.get('metainfo')
    return metainfo.get('classes') if isinstance(metainfo, dict) else None
