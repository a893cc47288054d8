"""Point a config at the user's own pictures with a few --cfg-options.

A config that has `own_data` says where pictures and annotations are, once; the data sets, evaluators and the
number of classes follow from it:

    own_data = dict(
        root='data/own',
        train=dict(images='images/train', annotations='annotations/instances_train.json'),
        val=dict(images='images/val', annotations='annotations/instances_val.json'))

for detection, in COCO's format, with the classes its file names; and for segmentation, with one label PNG a picture,

    own_data = dict(
        root='data/own', classes=('road', 'tree'), ignore_index=255, image_suffix='.jpg', label_suffix='.png',
        train=dict(images='images/train', labels='labels/train'), val=dict(images='images/val', labels='labels/val'))
"""

from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from ..errors import ConfigError, DataError
from .annotations import check_annotations, uses_masks


def fill_own_data(cfg: Config) -> None:
    """Fill the data sets, evaluators and numbers of classes of a config that has `own_data`, in place.

    Raises:
        ValueError: if a file or folder is missing or the classes are not known, naming the key of `own_data`.
        DataError: if an annotation file is not in COCO's format.
    """
    own = cfg.get('own_data')
    if own is None:
        return
    _check_shape(cfg, own)
    if 'annotations' in own.train:
        _fill_coco(cfg, own)
    else:
        _fill_image_label(cfg, own)


def _check_shape(cfg: Config, own: Any) -> None:
    """See that `own_data`, and what it fills, is there and of the kind that it is said to be."""
    for key in ('train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator', 'test_evaluator'):
        if not isinstance(cfg.get(key), dict):
            raise ConfigError(f'own_data fills {key}, which takes a dict, got {cfg.get(key)!r}')
    if not isinstance(own, dict) or not isinstance(own.get('root'), str):
        raise ConfigError(f'own_data takes a dict with root, train and val, got {own!r}')
    for split in ('train', 'val'):
        files = own.get(split)
        other = 'annotations' if isinstance(files, dict) and 'annotations' in files else 'labels'
        if not isinstance(files, dict) or not all(isinstance(files.get(key), str) for key in ('images', other)):
            raise ConfigError(f'own_data.{split} takes a dict with images, and annotations or labels, got {files!r}')


def set_num_classes(cfg: Config, number: int) -> None:
    """Write a number of classes wherever a model's config has one, in place."""
    _set_everywhere(cfg.model, 'num_classes', number)


def _fill_coco(cfg: Config, own: ConfigDict) -> None:
    classes = _coco_classes(cfg, own)
    if len(classes) > 1:
        raise ValueError('own_data.val.annotations must have the categories of own_data.train.annotations')
    for loader, split in _loaders(cfg):
        loader.dataset.update(
            data_root=own.root,
            ann_file=own[split].annotations,
            data_prefix=dict(img=_existing(own, split, 'images', relative=True)),
            metainfo=dict(classes=classes[0]),
        )
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.ann_file = str(Path(own.root) / own.val.annotations)
    set_num_classes(cfg, len(classes[0]))


def _fill_image_label(cfg: Config, own: ConfigDict) -> None:
    classes = own.get('classes')
    if not classes or isinstance(classes, str):
        raise ValueError(
            'own_data.classes must name the classes in the order of the label values, as in '
            f'own_data.classes="[road,tree]"; got {classes!r}'
        )
    for loader, split in _loaders(cfg):
        loader.dataset.update(
            data_root=own.root,
            data_prefix=dict(
                img_path=_existing(own, split, 'images', relative=True),
                seg_map_path=_existing(own, split, 'labels', relative=True),
            ),
            img_suffix=own.image_suffix,
            seg_map_suffix=own.label_suffix,
            metainfo=dict(classes=tuple(classes)),
        )
    # Padding of the labels, the losses and the evaluation all have to skip the same value.
    cfg.model.data_preprocessor.seg_pad_val = own.ignore_index
    for head in (cfg.model.decode_head, cfg.model.get('auxiliary_head')):
        if head is not None:
            head.ignore_index = own.ignore_index
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.ignore_index = own.ignore_index
    set_num_classes(cfg, len(classes))


def _loaders(cfg: Config) -> tuple[Any, ...]:
    return (cfg.train_dataloader, 'train'), (cfg.val_dataloader, 'val'), (cfg.test_dataloader, 'val')


def _existing(own: ConfigDict, split: str, key: str, relative: bool = False) -> str:
    path = Path(own.root) / own[split][key]
    if not path.exists():
        raise ValueError(f'own_data.{split}.{key} is {own[split][key]!r}, and there is no {path}')
    return own[split][key] if relative else str(path)


def _coco_classes(cfg: Config, own: ConfigDict) -> list[tuple[str, ...]]:
    """The classes of the two annotation files, once if they are the same.

    A file that cannot be read is left to whoever looks through the data, if the other says what the classes are.
    """
    found, errors = set(), []
    for split in ('train', 'val'):
        path = _existing(own, split, 'annotations')
        try:
            found.add(check_annotations(path, 'COCO', uses_masks(cfg)).categories)
        except DataError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return list(found)


def _set_everywhere(node: Any, key: str, value: Any) -> None:
    """Set each `key` that stands in a config, however deep."""
    if isinstance(node, dict):
        if key in node:
            node[key] = value
        for child in node.values():
            _set_everywhere(child, key, value)
    elif isinstance(node, (list, tuple)):
        for child in node:
            _set_everywhere(child, key, value)
