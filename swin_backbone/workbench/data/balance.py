"""`--balance`: rare classes count more in a training, by repeated pictures, or by weights of a segmentor's loss."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from numpy.typing import NDArray

from ...checks import list_first
from ...openmmlab.config_parts import iter_parts, type_name
from ...openmmlab.errors import ConfigError
from ..configs.data_parts import list_dataset_configs
from .datasets import BuiltDatasets, iter_base_datasets
from .load_picture import loads_annotations

RARE = 0.5  # share of the median class's pictures below which a class is rare: doubled, it does not exceed the median
WEIGHT_OF_ALL = 1.02  # of Paszke et al. 2016, ENet: weights of 1 / log(1.02 + share) differ by a factor of 35 at most
MAX_NAMES = 8


class EpochPlan(NamedTuple):
    """The pictures of an epoch, which the schedule of a training and the balance of its classes follow.

    Args:
        num_pictures: number of pictures, with repetitions.
        oversample_thrs: thresholds of ClassBalancedDataset by the key of a data set, with `--balance`.
        class_weights: weights of a segmentor's cross entropy, with `--balance`.
        line: what `--balance` changes.
    """

    num_pictures: int
    oversample_thrs: Mapping[str, float] = {}
    class_weights: Sequence[float] = ()
    line: str = ''


def plan_epoch(datasets: BuiltDatasets, balance: bool = False) -> EpochPlan:
    """Count the pictures of an epoch and, with `balance`, objects or pixels of all classes.

    A segmentor's cross entropy gets weights by the pixels of all training labels. Other models see pictures of rare
    classes several times in an epoch, by mmengine's ClassBalancedDataset.

    Raises:
        ConfigError: if the loss has no weights, or the data set no classes by picture.
    """
    if not balance:
        return EpochPlan(len(datasets.build_phase('train')))
    if _find_heads(datasets.cfg)[0]:
        _find_losses(datasets.cfg)
        weights, line = _weigh_classes(datasets)
        return EpochPlan(len(datasets.build_phase('train')), class_weights=weights, line=line)
    return _repeat_pictures(datasets)


def apply_balance(cfg: Config, plan: EpochPlan) -> None:
    """Balance the classes of a training, in place, by the plan of an epoch."""
    for loss in _find_losses(cfg) if plan.class_weights else ():
        loss['class_weight'] = list(plan.class_weights)
    for where, dataset in list_dataset_configs(cfg, 'train'):
        if where in plan.oversample_thrs:
            inner = copy.deepcopy(dataset)
            dataset.clear()
            dataset.update(type='ClassBalancedDataset', oversample_thr=plan.oversample_thrs[where], dataset=inner)


def _repeat_pictures(datasets: BuiltDatasets) -> EpochPlan:
    rare_classes: Counter[str] = Counter()  # numbers of their pictures
    limits: dict[str, float] = {}
    for where, dataset in list_dataset_configs(datasets.cfg, 'train'):
        built = datasets.build('train', dataset)
        try:
            counts = Counter(label for index in range(len(built)) for label in set(built.get_cat_ids(index)))
        except (AttributeError, NotImplementedError) as error:
            raise ConfigError(f'--balance needs get_cat_ids, which {where} of {type(built).__name__} lacks') from error
        if not counts:
            continue
        limit = RARE * float(np.median(list(counts.values())))
        names = built.metainfo['classes']
        rare_classes.update({names[label]: count for label, count in counts.items() if count < limit})
        limits[where] = limit / len(built)
    num_before = len(datasets.build_phase('train'))
    if not rare_classes:
        line = '--balance repeats nothing: every class is in half as many pictures as the median class, or more'
        return EpochPlan(num_before, line=line)
    cfg = copy.deepcopy(datasets.cfg)
    apply_balance(cfg, EpochPlan(num_before, limits))
    num_after = len(datasets.build('train', cfg.train_dataloader.dataset))
    shown = list_first([f'{name} ({count})' for name, count in rare_classes.most_common()[::-1]], MAX_NAMES)
    line = (
        f'--balance repeats pictures of classes in less than half as many pictures as the median class: {shown}; '
        f'an epoch has {num_after:,} pictures in place of {num_before:,}'
    )
    return EpochPlan(num_after, limits, line=line)


def _find_heads(cfg: Config) -> list[Any]:
    return [(cfg.get('model') or {}).get(name) for name in ('decode_head', 'auxiliary_head')]


def _find_losses(cfg: Config) -> list[dict[str, Any]]:
    losses = [
        part
        for where, part in iter_parts(_find_heads(cfg), 'model')
        if 'loss_decode' in where and 'CrossEntropy' in type_name(part) and not part.get('use_sigmoid')
    ]
    if not losses:
        raise ConfigError("--balance needs loss_decode=dict(type='CrossEntropyLoss') in model.decode_head")
    return losses


def _weigh_classes(datasets: BuiltDatasets) -> tuple[list[float], str]:
    names, pixels = _count_pixels(datasets)
    shares = pixels / max(1, pixels.sum())
    weights = 1 / np.log(WEIGHT_OF_ALL + shares)
    weights /= max(shares @ weights, 1e-9)  # the mean over the pixels is 1: the scale of the loss stays
    order = np.argsort(shares)
    classes = [f'{names[index]} {weights[index]:.3g} ({shares[index]:.2%} of the pixels)' for index in order]
    shown = list_first(classes, MAX_NAMES)
    return [float(f'{weight:.4g}') for weight in weights], f'--balance weighs the cross entropy by class: {shown}'


def _count_pixels(datasets: BuiltDatasets) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes, and the pixels of each in all labels of the training, as training loads them."""
    (base, *more) = iter_base_datasets(datasets.build_phase('train'))
    names = base.metainfo['classes']
    pixels = np.zeros(len(names), np.int64)
    for dataset in (base, *more):
        loading_steps = [step for step in dataset.pipeline.transforms if loads_annotations(step)]

        def count(index: int, dataset: Any = dataset, steps: Any = loading_steps) -> NDArray[np.int64]:
            labels = Compose(steps)(dataset.get_data_info(index))['gt_seg_map']
            counts: NDArray[np.int64] = np.bincount(labels.ravel(), minlength=len(names))[: len(names)]
            return counts

        with ThreadPoolExecutor() as threads:
            for counts in threads.map(count, range(len(dataset))):
                pixels += counts
    return names, pixels
