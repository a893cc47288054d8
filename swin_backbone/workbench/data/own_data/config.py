"""Point any config of mmdet, mmseg or mmpretrain at the user's own pictures.

`own_data` names pictures and annotations once. Data sets, evaluators and numbers of classes follow. `--data` writes it
(layouts.py), or the user does, in a config or by --cfg-options:

    own_data = dict(
        root='data/own',
        train=dict(images='images/train', annotations='annotations/instances_train.json'),
        val=dict(images='images/val', annotations='annotations/instances_val.json'))

for detection, in COCO's format, with the categories of the file; and for segmentation, with one label PNG a picture,

    own_data = dict(
        root='data/own', classes=('road', 'tree'), ignore_index=255, image_suffix='.jpg', label_suffix='.png',
        train=dict(images='images/train', labels='labels/train'), val=dict(images='images/val', labels='labels/val'))

`--data` writes the second kind as `pairs`, for each split a file of pictures and labels in mmengine's format. For
classification, with a picture's name and the number of its class in each line of a file,

    own_data = dict(root='data/own', classes=('cat', 'dog'), train=dict(list='train.txt'), val=dict(list='val.txt'))
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from ....openmmlab.errors import ConfigError, parts_of, walk
from ...configs.paths import metrics_in
from ...pictures.colours import distinct_colours
from ..annotations import check_annotations, uses_masks

KEPT_KEYS = ('pipeline', 'filter_cfg', 'test_mode', 'indices', 'serialize_data', 'lazy_init', 'max_refetch')
SEVERAL = ('MultiBranchDataPreprocessor', 'TrackDataPreprocessor')  # semi-supervised, and of videos
PANOPTIC = 'MaskFormerFusionHead'  # the head of the models that segment instances too
# Parts of a model with other classes than the data: object or none, or words.
FIXED_CLASSES = ('rpn_head', 'language_model')
EDGES = 'STDCHead'  # with two classes, edge and background


def fill_own_data(cfg: Config) -> None:
    """Fill the data sets, evaluators and numbers of classes of a config that has `own_data`, in place.

    Raises:
        ValueError: if a file or folder is missing, the classes are unknown, or the config takes data of another kind;
            with the key.
        DataError: if an annotation file is not in COCO's format.
    """
    own = cfg.get('own_data')
    if own is None:
        return
    sampler = cfg.train_dataloader.get('sampler') or {}
    preprocessor = str((cfg.model.get('data_preprocessor') or {}).get('type', ''))
    if 'MultiSource' in str(sampler.get('type')) or preprocessor.endswith(SEVERAL):
        raise ConfigError(
            f'own_data takes a config that trains on the pictures of one data set, and model is {cfg.model.type}'
        )
    if cfg.get('default_scope') == 'mmpretrain':
        _fill_classes(cfg, own)
    elif 'annotations' in own.train:
        _fill_coco(cfg, own)
    else:
        _fill_image_label(cfg, own)


# --- detection --------------------------------------------------------------------------------------------------------


def _fill_coco(cfg: Config, own: ConfigDict) -> None:
    paths = [_existing(own, split, 'annotations') for split in ('train', 'val')]
    train, val = (check_annotations(path, 'COCO', uses_masks(cfg)) for path in paths)
    names = train.categories
    if val.categories != names:
        place, pair = next(item for item in enumerate(zip_longest(names, val.categories)) if item[1][0] != item[1][1])
        raise ValueError(
            f'{paths[0]} and {paths[1]} must have the same categories in the same order: number {place + 1} is '
            f'{pair[0]!r} in the first, and {pair[1]!r} in the second'
        )
    if train.rles:  # mmdet leaves them out where it keeps polygons
        for transform in _transforms(cfg):
            if 'poly2mask' in transform:
                transform.poly2mask = True
    _leave_out_semantics(cfg)
    _segment_instances(cfg, len(names))
    metainfo = dict(classes=names, palette=distinct_colours(len(names)))
    for loader, split in _loaders(cfg):
        files = own[split]
        _replace_data(
            loader,
            'CocoDataset',
            data_root=own.root,
            ann_file=files.annotations,
            data_prefix=dict(img=_existing(own, split, 'images', relative=True)),
            metainfo=metainfo,
        )
    default = dict(metric=['bbox', 'segm'][: 1 + uses_masks(cfg)])
    _replace_metrics(cfg, 'CocoMetric', default, ann_file=str(Path(own.root) / own.val.annotations), backend_args=None)
    set_num_classes(cfg.model, len(names))


def _leave_out_semantics(cfg: Config) -> None:
    """Remove the branches of HTC and SCNet for labels of pixels: COCO's annotations have no such labels."""
    roi_head = cfg.model.get('roi_head')
    if isinstance(roi_head, dict) and 'semantic_head' in roi_head:
        for name in ('semantic_head', 'semantic_roi_extractor'):
            roi_head.pop(name, None)
        for transform in _transforms(cfg):
            if transform.get('with_seg'):
                transform.with_seg = False


def _segment_instances(cfg: Config, number: int) -> None:
    """Change a panoptic MaskFormer to segment instances of `number` classes."""
    loads = [step for step in _transforms(cfg) if str(step.get('type')) == 'LoadPanopticAnnotations']
    fusion = cfg.model.get('panoptic_fusion_head')
    is_mask_former = isinstance(fusion, dict) and fusion.get('type') == PANOPTIC
    if (loads or 'semantic_head' in cfg.model) and not is_mask_former:
        raise ConfigError(
            f'own_data.train.annotations are of objects, and model {cfg.model.type} takes panoptic annotations: take a '
            'config of instances, as mask_rcnn'
        )
    if is_mask_former:
        for part in (fusion, cfg.model.panoptic_head):
            part.update(num_things_classes=number, num_stuff_classes=0)
        cfg.model.setdefault('test_cfg', ConfigDict()).update(panoptic_on=False, semantic_on=False, instance_on=True)
    for transform in loads:
        reading = {name: value for name, value in transform.items() if name in ('imdecode_backend', 'backend_args')}
        transform.clear()
        transform.update(type='LoadAnnotations', with_bbox=True, with_mask=True, **reading)


# --- segmentation -----------------------------------------------------------------------------------------------------


def _fill_image_label(cfg: Config, own: ConfigDict) -> None:
    classes = _classes_of(own)
    ignored = own.get('ignore_index', 255)
    metainfo = dict(classes=classes, palette=[list(colour) for colour in distinct_colours(len(classes))])
    for loader, split in _loaders(cfg):
        if 'pairs' in own[split]:
            _replace_data(
                loader,
                'mmengine.dataset.BaseDataset',
                data_root=own.root,
                ann_file=_existing(own, split, 'pairs'),
                metainfo=metainfo,
            )
            continue
        _replace_data(
            loader,
            'BaseSegDataset',
            data_root=own.root,
            data_prefix=dict(
                img_path=_existing(own, split, 'images', relative=True),
                seg_map_path=_existing(own, split, 'labels', relative=True),
            ),
            img_suffix=own.get('image_suffix', '.jpg'),
            seg_map_suffix=own.get('label_suffix', '.png'),
            metainfo=metainfo,
            reduce_zero_label=bool(own.get('reduce_zero_label')),
            ignore_index=ignored,
        )
    for transform in _transforms(cfg):
        if transform.get('type') == 'LoadAnnotations':  # the data set has the setting
            transform.pop('reduce_zero_label', None)
    # Padding, losses and evaluation ignore the same value.
    if 'data_preprocessor' in cfg.model:
        cfg.model.data_preprocessor.seg_pad_val = ignored
    for name in ('decode_head', 'auxiliary_head'):
        heads = cfg.model.get(name) or []
        for head in heads if isinstance(heads, (list, tuple)) else [heads]:
            head.get('kernel_generate_head', head).ignore_index = ignored  # K-Net takes the value of the head inside
    _replace_metrics(cfg, 'IoUMetric', dict(iou_metrics=['mIoU']), ignore_index=ignored)
    set_num_classes(cfg.model, len(classes))


# --- classification ---------------------------------------------------------------------------------------------------


def _fill_classes(cfg: Config, own: ConfigDict) -> None:
    if 'num_classes' not in (cfg.model.get('head') or {}):
        kind = cfg.model.type
        raise ConfigError(f'own_data takes a classifier, whose model.head has num_classes, and model is {kind}')
    classes = _classes_of(own)
    for loader, split in _loaders(cfg):
        file = str(Path(_existing(own, split, 'list')).absolute())
        _replace_data(loader, 'CustomDataset', data_root=own.root, ann_file=file, metainfo=dict(classes=classes))
    _replace_metrics(cfg, 'Accuracy', dict(topk=(1, 5)))
    for phase in ('val', 'test'):
        metric = cfg[f'{phase}_evaluator']
        given = metric.get('topk', 1)
        given = given if isinstance(given, (list, tuple)) else [given]
        metric.topk = tuple(k for k in given if k < len(classes)) or (1,)  # of five classes, the best five are all
    for part in (cfg.model, cfg.get('data_preprocessor')):
        set_num_classes(part, len(classes))


# --- all --------------------------------------------------------------------------------------------------------------


def _loaders(cfg: Config) -> tuple[Any, ...]:
    return (cfg.train_dataloader, 'train'), (cfg.val_dataloader, 'val'), (cfg.test_dataloader, 'val')


def _classes_of(own: ConfigDict) -> tuple[str, ...]:
    classes = own.get('classes')
    if not classes or isinstance(classes, str):
        raise ValueError(
            'own_data.classes must name the classes in the order of the label values, as in '
            f'own_data.classes="[road,tree]"; got {classes!r}'
        )
    return tuple(classes)


def _existing(own: ConfigDict, split: str, key: str, relative: bool = False) -> str:
    path = Path(own.root) / own[split][key]
    if not path.exists():
        raise ValueError(f'own_data.{split}.{key} is {own[split][key]!r}, and there is no {path}')
    return own[split][key] if relative else str(path)


def _replace_data(loader: ConfigDict, kind: str, **settings: Any) -> None:
    """Replace the data sets of a loader by a single data set, in place. Wrappers for repeating or mixing stay."""

    def replaced(node: Any) -> Any:
        if isinstance(node, (list, tuple)):
            return replaced(node[0])
        if 'dataset' in node:
            node.dataset = replaced(node.dataset)
            return node
        if 'datasets' in node:
            inner = replaced(node.datasets)
            return ConfigDict({'pipeline': node.pipeline, **inner}) if 'pipeline' in node else inner
        return ConfigDict(type=kind, **settings, **{name: node[name] for name in KEPT_KEYS if name in node})

    loader.dataset = replaced(loader.dataset)


def _replace_metrics(cfg: Config, kind: str, default: dict[str, Any], **settings: Any) -> None:
    """Replace the evaluators by a single metric, in place. The config's own metric of this kind keeps its settings."""
    for phase in ('val', 'test'):
        metric = next((metric for _, metric in metrics_in(cfg, phase) if metric.get('type') == kind), default)
        cfg[f'{phase}_evaluator'] = ConfigDict({**metric, 'type': kind, **settings})


def _transforms(cfg: Config) -> Iterator[ConfigDict]:
    """Yield each transform of the pipelines of a config, also nested ones."""
    return (part for key, part in parts_of(cfg) if 'pipeline.' in f'{key}.')


def set_num_classes(model: Any, number: int) -> None:
    """Write the number of classes into each part of a model's config, in place, and adapt weights by class.

    Equal weights are repeated; the background keeps its own. Different weights belong to other classes and are removed.
    """

    def enters(name: str, part: Any) -> bool:
        is_fixed = isinstance(part, dict) and ('language_model' in part or part.get('type') == EDGES)
        return name not in FIXED_CLASSES and not is_fixed

    for _, part in walk([model], enters=enters):
        if not isinstance(part, dict):
            continue
        if 'num_classes' in part:
            part['num_classes'] = number
            if part.get('out_channels') == 1 and number != 2:  # two classes, by a threshold
                part.update(out_channels=number)
                part.pop('threshold', None)
        if isinstance(part.get('class_weight'), (list, tuple)):
            *weights, background = part['class_weight']
            part['class_weight'] = [*weights[:1] * number, background] if len(set(weights)) == 1 else None
