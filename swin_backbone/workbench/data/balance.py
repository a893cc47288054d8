"""`--balance`: rare classes count more in a training, by repeated pictures, or by weights of a segmentor's loss."""

import copy
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ...openmmlab.errors import ConfigError, kind_of, parts_of
from ..configs.paths import datasets_in
from .datasets import DataSets, base_datasets

RARE = 0.5  # of the pictures of the median class: at most doubled, no class then exceeds the median
WEIGHT_OF_ALL = 1.02  # of Paszke et al. 2016, ENet: weights of 1 / log(1.02 + share) differ by a factor of 35 at most
MOST_NAMES = 8


def balance(datasets: DataSets) -> tuple[Optional[Any], str]:
    """Balance the classes of a training.

    A segmentor's cross entropy gets `class_weight`, in place, by the pixels of all training labels. Other models see
    pictures of rare classes several times in an epoch, by mmengine's ClassBalancedDataset.

    Returns:
        The config of the training's data set with the repetitions, or None, and a line.

    Raises:
        ConfigError: if the loss has no weights, or the data set no classes by picture.
    """
    heads = [(datasets.cfg.get('model') or {}).get(name) for name in ('decode_head', 'auxiliary_head')]
    return (None, _weigh_loss(datasets, heads)) if heads[0] else _repeat_pictures(datasets)


def _repeat_pictures(datasets: DataSets) -> tuple[Any, str]:
    cfg = copy.deepcopy(datasets.cfg)
    rare: Counter[str] = Counter()
    for where, leaf in datasets_in(cfg, 'train'):
        built = datasets.build('train', leaf)
        try:
            found = Counter(label for index in range(len(built)) for label in set(built.get_cat_ids(index)))
        except (AttributeError, NotImplementedError) as error:
            raise ConfigError(f'--balance needs get_cat_ids, which {where} of {type(built).__name__} lacks') from error
        if not found:
            continue
        limit = RARE * float(np.median(list(found.values())))
        names = built.metainfo['classes']
        rare.update({names[label]: number for label, number in found.items() if number < limit})
        inner = copy.deepcopy(leaf)
        leaf.clear()
        leaf.update(type='ClassBalancedDataset', oversample_thr=limit / len(built), dataset=inner)
    if not rare:
        return None, '--balance repeats nothing: every class is in half as many pictures as the median class, or more'
    before, after = (len(datasets.build('train', one.train_dataloader.dataset)) for one in (datasets.cfg, cfg))
    shown = _shown(f'{name} ({number})' for name, number in sorted(rare.items(), key=lambda item: item[1]))
    return cfg.train_dataloader.dataset, (
        f'--balance repeats pictures of classes in less than half as many pictures as the median class: {shown}; '
        f'an epoch has {after:,} pictures in place of {before:,}'
    )


def _weigh_loss(datasets: DataSets, heads: list[Any]) -> str:
    losses = [
        part
        for where, part in parts_of(heads, 'model')
        if 'loss_decode' in where and 'CrossEntropy' in kind_of(part) and not part.get('use_sigmoid')
    ]
    if not losses:
        raise ConfigError("--balance needs loss_decode=dict(type='CrossEntropyLoss') in model.decode_head")
    names, pixels = _count_pixels(datasets)
    shares = pixels / max(1, pixels.sum())
    weights = 1 / np.log(WEIGHT_OF_ALL + shares)
    weights /= max(shares @ weights, 1e-9)  # the mean over the pixels is 1: the scale of the loss stays
    for loss in losses:
        loss['class_weight'] = [float(f'{weight:.4g}') for weight in weights]
    order = np.argsort(shares)
    shown = _shown(f'{names[index]} {weights[index]:.3g} ({shares[index]:.2%} of the pixels)' for index in order)
    return f'--balance weighs the cross entropy by class: {shown}'


def _count_pixels(datasets: DataSets) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the classes, and the pixels of each in all labels of the training, as training loads them."""
    (base, *more) = base_datasets(datasets.of('train'))
    names = base.metainfo['classes']
    pixels = np.zeros(len(names), np.int64)
    for dataset in (base, *more):
        (load,) = [step for step in dataset.pipeline.transforms if type(step).__name__ == 'LoadAnnotations']

        def count(index: int, dataset: Any = dataset, load: Any = load) -> NDArray[np.int64]:
            labels = load.transform(dataset.get_data_info(index))['gt_seg_map']
            counts: NDArray[np.int64] = np.bincount(labels.ravel(), minlength=len(names))[: len(names)]
            return counts

        with ThreadPoolExecutor() as threads:
            for counts in threads.map(count, range(len(dataset))):
                pixels += counts
    return names, pixels


def _shown(texts: Iterable[str]) -> str:
    texts = list(texts)
    return ', '.join(texts[:MOST_NAMES]) + (f' and {len(texts) - MOST_NAMES} more' if len(texts) > MOST_NAMES else '')
