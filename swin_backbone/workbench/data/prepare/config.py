"""Replace the data of a config of mmdet, mmseg or mmpretrain by the data of a user: data sets, evaluators, classes."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from mmengine.config import Config, ConfigDict

from ....openmmlab.config_parts import iter_parts, type_name, walk
from ....openmmlab.errors import ConfigError
from ...configs.cfg_options import get_setting
from ...configs.data_parts import list_metric_configs
from ...pictures.colours import make_palette
from ..annotations import uses_masks
from .folder import format_line
from .index import IndexedSplit
from .labels import IGNORED_LABEL
from .user_data import UserData

KEPT_KEYS = ('pipeline', 'filter_cfg', 'test_mode', 'indices', 'serialize_data', 'lazy_init', 'max_refetch')
MULTI_BRANCH_PREPROCESSORS = ('MultiBranchDataPreprocessor', 'TrackDataPreprocessor')  # semi-supervised, and of videos
PANOPTIC_HEAD = 'MaskFormerFusionHead'  # of the panoptic models that segment instances too
# Parts whose classes are not those of the data: an RPN tells objects from background, a language model has words
PARTS_WITH_OWN_CLASSES = ('rpn_head', 'language_model')
EVALUATED_PHASES = ('val', 'test')
EDGE_HEAD = 'STDCHead'  # always of two classes, edge and background


def put_data(cfg: Config, data: UserData) -> None:
    """Replace the data sets, evaluators and numbers of classes of a config, in place. No file is read.

    A split without a data loader in the config is left out.

    Raises:
        ConfigError: if the config takes data of another kind, with the key.
    """
    sampler = (cfg.get('train_dataloader') or {}).get('sampler') or {}
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if 'MultiSource' in str(sampler.get('type')) or (
        'type' in preprocessor and type_name(preprocessor) in MULTI_BRANCH_PREPROCESSORS
    ):
        raise ConfigError(
            f'--data takes a config that trains on the pictures of one data set, and model is {cfg.model.type}'
        )
    if cfg.get('test_dataloader'):
        cfg.test_dataloader = copy.deepcopy(cfg.test_dataloader)  # many configs have test_dataloader = val_dataloader
    splits = {'test': data.splits['val'], **data.splits}  # without data for a test, the validation data are tested
    splits = {phase: split for phase, split in splits.items() if cfg.get(f'{phase}_dataloader')}
    dict(mmdet=_put_objects, mmseg=_put_labels, mmpretrain=_put_classes)[data.scope](cfg, data, splits)


def test_on_held_out(cfg: Config, data: UserData) -> None:
    """Test on the validation data in place of a test set alone, in place: a training sees the other pictures of it."""
    for phase_part in (cfg.get('test_dataloader'), cfg.get('test_evaluator')):
        for _, part in walk(phase_part):
            if isinstance(part, dict) and part.get('ann_file') == data.splits['test'].file:
                part['ann_file'] = data.splits['val'].file


# --- detection --------------------------------------------------------------------------------------------------------


def _put_objects(cfg: Config, data: UserData, splits: Mapping[str, IndexedSplit]) -> None:
    if data.splits['train'].has_rles:  # mmdet leaves these masks out where it keeps polygons
        for transform in _iter_transforms(cfg):
            if 'poly2mask' in transform:
                transform.poly2mask = True
    _drop_semantic_branches(cfg)
    _turn_panoptic_into_instances(cfg, len(data.classes))
    metainfo = dict(classes=data.classes, palette=make_palette(len(data.classes)))
    default = dict(metric=['bbox', 'segm'][: 1 + uses_masks(cfg)])
    for phase, split in splits.items():
        _replace_data(
            cfg[f'{phase}_dataloader'],
            'CocoDataset',
            data_root=data.root,
            ann_file=split.file,
            data_prefix=dict(img=''),
            metainfo=metainfo,
        )
        if phase in EVALUATED_PHASES:
            _replace_metric(cfg, phase, 'CocoMetric', default, ann_file=split.file, backend_args=None)
    set_num_classes(cfg.model, len(data.classes))


def _drop_semantic_branches(cfg: Config) -> None:
    """Remove the branches of HTC and SCNet for labels of pixels: COCO's annotations have no such labels."""
    roi_head = cfg.model.get('roi_head')
    if isinstance(roi_head, dict) and 'semantic_head' in roi_head:
        for name in ('semantic_head', 'semantic_roi_extractor'):
            roi_head.pop(name, None)
        for transform in _iter_transforms(cfg):
            if transform.get('with_seg'):
                transform.with_seg = False


def _turn_panoptic_into_instances(cfg: Config, num_classes: int) -> None:
    """Change a panoptic MaskFormer to segment instances."""
    loading_steps = [step for step in _iter_transforms(cfg) if type_name(step) == 'LoadPanopticAnnotations']
    fusion = cfg.model.get('panoptic_fusion_head')
    is_mask_former = isinstance(fusion, dict) and type_name(fusion) == PANOPTIC_HEAD
    if (loading_steps or 'semantic_head' in cfg.model) and not is_mask_former:
        raise ConfigError(
            f'the annotations of --data are of objects, and model {cfg.model.type} takes panoptic annotations: take a '
            'config of instances, as mask_rcnn'
        )
    if is_mask_former:
        for head in (fusion, cfg.model.panoptic_head):
            head.update(num_things_classes=num_classes, num_stuff_classes=0)
        cfg.model.setdefault('test_cfg', ConfigDict()).update(panoptic_on=False, semantic_on=False, instance_on=True)
        for augment in (cfg.model.get('data_preprocessor') or {}).get('batch_augments') or ():
            if 'pad_seg' in augment:
                augment.pad_seg = False  # the labels of pixels, which COCO's annotations have not
    for transform in loading_steps:
        reading = {name: value for name, value in transform.items() if name in ('imdecode_backend', 'backend_args')}
        transform.clear()
        transform.update(type='LoadAnnotations', with_bbox=True, with_mask=True, **reading)


# --- segmentation -----------------------------------------------------------------------------------------------------


def _put_labels(cfg: Config, data: UserData, splits: Mapping[str, IndexedSplit]) -> None:
    palette = [list(colour) for colour in make_palette(len(data.classes))]
    metainfo = dict(classes=data.classes, palette=palette)
    for phase, split in splits.items():
        name = 'mmengine.dataset.BaseDataset'
        _replace_data(cfg[f'{phase}_dataloader'], name, data_root=data.root, ann_file=split.file, metainfo=metainfo)
        if phase in EVALUATED_PHASES:
            _replace_metric(cfg, phase, 'IoUMetric', dict(iou_metrics=['mIoU']), ignore_index=IGNORED_LABEL)
    for transform in _iter_transforms(cfg):
        if type_name(transform) == 'LoadAnnotations':  # the index has the setting
            transform.pop('reduce_zero_label', None)
    # Padding, losses and evaluation ignore the same value.
    if 'data_preprocessor' in cfg.model:
        cfg.model.data_preprocessor.seg_pad_val = IGNORED_LABEL
    for name in ('decode_head', 'auxiliary_head'):
        heads = cfg.model.get(name) or []
        for head in heads if isinstance(heads, (list, tuple)) else [heads]:
            inner = head.get('kernel_generate_head', head)  # K-Net takes the value of its inner head
            inner.ignore_index = IGNORED_LABEL
    set_num_classes(cfg.model, len(data.classes))


# --- classification ---------------------------------------------------------------------------------------------------


def _put_classes(cfg: Config, data: UserData, splits: Mapping[str, IndexedSplit]) -> None:
    if 'num_classes' not in (cfg.model.get('head') or {}):
        name = cfg.model.type
        raise ConfigError(f'--data takes a classifier, whose model.head has num_classes, and model is {name}')
    metainfo = dict(classes=data.classes)
    for phase, split in splits.items():
        _replace_data(
            cfg[f'{phase}_dataloader'], 'CustomDataset', data_root=data.root, ann_file=split.file, metainfo=metainfo
        )
        if phase in EVALUATED_PHASES:
            _replace_metric(cfg, phase, 'Accuracy', dict(topk=(1, 5)))
            metric = cfg[f'{phase}_evaluator']
            topk = metric.get('topk', 1)
            topk = topk if isinstance(topk, (list, tuple)) else [topk]
            # The best five of five classes are always right
            metric.topk = tuple(k for k in topk if k < len(data.classes)) or (1,)
    for node in (cfg.model, cfg.get('data_preprocessor')):
        set_num_classes(node, len(data.classes))


# --- all --------------------------------------------------------------------------------------------------------------


def _replace_data(node: Any, class_name: str, **settings: Any) -> Any:
    """Return a loader, or what it loads, with one data set in place of all. Wrappers that repeat or mix stay."""
    if isinstance(node, (list, tuple)):
        return _replace_data(node[0], class_name, **settings)
    if 'dataset' in node:
        node.dataset = _replace_data(node.dataset, class_name, **settings)
        return node
    if 'datasets' in node:
        inner = _replace_data(node.datasets, class_name, **settings)
        return ConfigDict({'pipeline': node.pipeline, **inner}) if 'pipeline' in node else inner
    return ConfigDict(type=class_name, **settings, **{name: node[name] for name in KEPT_KEYS if name in node})


def _replace_metric(cfg: Config, phase: str, class_name: str, default: dict[str, Any], **settings: Any) -> None:
    """Replace an evaluator by a single metric, in place. The config's own metric of this class keeps its settings."""
    metrics = [metric for _, metric in list_metric_configs(cfg, phase) if 'type' in metric]
    metric = next((metric for metric in metrics if type_name(metric) == class_name), default)
    cfg[f'{phase}_evaluator'] = ConfigDict({**metric, 'type': class_name, **settings})


def _iter_transforms(cfg: Config) -> Iterator[ConfigDict]:
    """Yield each transform of the pipelines of a config, also nested ones."""
    return (part for key, part in iter_parts(cfg) if 'pipeline.' in f'{key}.')


def set_num_classes(model: Any, num_classes: int) -> None:
    """Write the number of classes into each part of a model's config, in place, and fit the weights of losses by class.

    Equal weights are repeated. Weights of as many classes stay, and different weights of other classes are removed.
    """
    old_numbers: dict[str, int] = {}  # numbers of classes, by key
    for key, part in walk([model], enters=_may_have_classes_of_data):
        if not isinstance(part, dict):
            continue
        if isinstance(part.get('num_classes'), int):
            old_numbers[key] = part['num_classes']
            part['num_classes'] = num_classes
            if part.get('out_channels') == 1 and num_classes != 2:  # two classes, by a threshold
                part.update(out_channels=num_classes)
                part.pop('threshold', None)
        if isinstance(part.get('class_weight'), (list, tuple)):
            outer_keys = [outer for outer in old_numbers if f'{key}.'.startswith(f'{outer}.')]
            old_number = old_numbers[max(outer_keys, key=len)] if outer_keys else None
            may_have_background = 'loss_decode' not in key
            weights = list(part['class_weight'])
            part['class_weight'] = _fit_class_weights(weights, old_number, num_classes, may_have_background)


def _may_have_classes_of_data(name: str, part: Any) -> bool:
    if isinstance(part, dict) and ('language_model' in part or ('type' in part and type_name(part) == EDGE_HEAD)):
        return False
    return name not in PARTS_WITH_OWN_CLASSES


def _fit_class_weights(
    weights: list[float], old_number: Optional[int], num_classes: int, may_have_background: bool
) -> Optional[list[float]]:
    """Return the weights of a loss for a number of classes; None for different weights of other classes.

    Args:
        old_number: number of classes of the weights, if the part of the config names it.
        may_have_background: the last of the weights may be that of the background.
    """
    size = len(weights)
    has_background = may_have_background and size != old_number and (size - 1 == old_number or size != num_classes)
    class_weights, background_weights = (weights[:-1], weights[-1:]) if has_background else (weights, [])
    if len(class_weights) == num_classes:
        return weights
    are_equal = len(set(class_weights)) == 1
    return [*class_weights[:1] * num_classes, *background_weights] if are_equal else None


def describe_lost_class_weights(before: Config, after: Config) -> Iterator[str]:
    """Yield a line for each loss that has lost its weights by class."""
    for key, value in walk(before.get('model'), 'model'):
        if key.endswith('.class_weight') and isinstance(value, (list, tuple)) and get_setting(after, key) is None:
            yield format_line('left out', f'{key} of the config: its {len(value)} weights are of other classes')
