"""Put a Swin backbone into any config of mmdet, mmseg, mmpretrain or mmrotate."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import DefaultScope

from ...archs import ARCHS
from ...checks import check_choice
from ..config_files import add_custom_import, read_config
from ..config_parts import count_bands, summarize, type_name, walk
from .classifiers import is_classifier, rewire_classifier
from .consumers import (
    SwappedMaps,
    find_maps_after_neck,
    leaves_maps_unread,
    rewire_detector,
    rewire_neck,
    rewire_segmentor,
)
from .probe import MapShape, find_backbone_maps
from .recipe import LAYER_DECAY, apply_recipe, find_constructor
from .variants import SWINS, Swin, Task

RECIPES = ('swin', 'keep')
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
CLASSIFIER_PREPROCESSORS = ('ClsDataPreprocessor', 'ReIDDataPreprocessor')  # the first is mmpretrain's default
STAGE_OF_STRIDE: dict[float, int] = {4: 0, 8: 1, 16: 2, 32: 3}


class Place(NamedTuple):
    """The place of a backbone in a config.

    Args:
        key: key of the model in the config: 'model', or deeper inside a wrapper or tracker.
        model: the dict with the backbone, its neck and its heads.
        name: name of the backbone in the model.
    """

    key: str
    model: ConfigDict
    name: str

    @property
    def backbone_key(self) -> str:
        return f'{self.key}.{self.name}'


def swap_backbone(
    cfg: Union[Config, dict[str, Any], str, Path],
    name: str,
    *,
    at: Optional[str] = None,
    recipe: str = 'swin',
    verbose: bool = True,
    **backbone: Any,
) -> Config:
    """Return a copy of a config with a Swin backbone in place of its own.

    All settings that depend on the backbone follow: channels and indices in neck and heads, normalisation of images,
    pretrained weights, and optimizer. A `SwinTransformer` of the same size gets only another `type`, and the results
    stay equal.

    Args:
        cfg: a config of mmdet, mmseg, mmpretrain or mmrotate, or its path or name, as `mmdet::...`.
        name: 'swin-t', 'swin-s', 'swin-b', 'swin-l' or 'swin-nano'; 'swin-s3-t', '-s' and '-b'; 'swinv2-t' and more.
        at: key of the backbone in a model with several backbones, as 'model.img_backbone'.
        recipe: the optimizer: 'swin' for the Swin recipe (see `recipe.apply_recipe`), 'keep' for the config's own.
        verbose: print the changes.
        backbone: further arguments of the new backbone, as window_size=12 or init_cfg=None.

    Raises:
        ValueError: with the key of a setting that cannot follow.

    Examples:
        >>> from mmengine.config import Config
        >>> from swin_backbone import swap_backbone
        >>> backbone = dict(type='SwinTransformer', embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24])
        >>> cfg = Config(dict(model=dict(type='MaskRCNN', backbone=backbone)))
        >>> swap_backbone(cfg, 'swin-t', verbose=False).model.backbone.type
        'SwinBackbone'
    """
    check_choice('backbone', name, SWINS)
    check_choice('recipe', recipe, RECIPES)
    if isinstance(cfg, (str, Path)):
        cfg = read_config(cfg)
    before = cfg if isinstance(cfg, Config) else Config(cfg)
    after = copy.deepcopy(before)
    swin = SWINS[name]
    place = _find_backbone(after, at)
    model = place.model
    scope = after.get('default_scope')
    task: Task = 'detection'
    if is_classifier(model, scope):
        task = 'classification'
    elif scope == 'mmseg' or 'decode_head' in model:
        task = 'segmentation'
    notes: list[str] = []
    if _is_same(model[place.name], swin) and task != 'classification':
        model[place.name].type = swin.type
        model[place.name].update(backbone)
    else:
        with DefaultScope.overwrite_default_scope(scope or ('mmseg' if task == 'segmentation' else 'mmdet')):
            notes = _replace(after, place, swin, task)
        model[place.name].update(backbone)
        if recipe == 'swin':
            apply_recipe(after, place.backbone_key.removeprefix('model.'), model[place.name], task)
        elif find_constructor(after.get('optim_wrapper') or {}) not in (None, LAYER_DECAY):
            raise ValueError(
                f'optim_wrapper.constructor {after.optim_wrapper.constructor!r} is made for the old backbone; '
                "recipe 'swin' takes it out"
            )
    add_custom_import(after)
    if verbose:
        text = '\n'.join([f'{name} into this config:', summarize(before, after), *notes])
        print_log(text, logger='current')
    return after


def _find_backbone(cfg: Config, at: Optional[str]) -> Place:
    model = cfg.get('model')
    if not isinstance(model, dict):
        raise ValueError(f'model takes a dict with a backbone, got {model!r:.80}')
    backbones = _list_backbones(model)
    keys = [place.backbone_key for place in backbones]
    if at is not None:
        if at not in keys:
            raise ValueError(f'{at}: no backbone of the config is there; it has {keys}')
        return backbones[keys.index(at)]
    if len(backbones) != 1:
        hint = '; choose by --at KEY, or at=...' if backbones else ''
        raise ValueError(f'model takes exactly one backbone to swap, got {keys}{hint}')
    return backbones[0]


def _list_backbones(model: ConfigDict) -> list[Place]:
    """Return the backbones of the outermost dicts that have any."""
    backbones: list[Place] = []
    for key, node in walk(model, 'model', lambda _, child: isinstance(child, dict)):
        if not any(f'{key}.'.startswith(f'{outer}.') for outer, *_ in backbones):
            names = [name for name, child in node.items() if isinstance(child, dict) and 'type' in child]
            backbones += [Place(key, node, name) for name in names if name.endswith('backbone')]
    return backbones


def _iter_path(model: ConfigDict, key: str) -> Iterator[ConfigDict]:
    """Yield the dicts from the model to the dict at `key`, as 'model.detector'."""
    yield model
    for name in key.split('.')[1:]:
        model = model[name]
        yield model


def _is_same(old: ConfigDict, swin: Swin) -> bool:
    """Return whether a backbone is this Swin already, of a toolbox or of this package: equal sizes and windows."""
    path = old.type if isinstance(old.type, str) else old.type.__module__
    is_mmpretrains = path.startswith('mmpretrain.')  # has other arguments
    same_types = (swin.type, 'SwinTransformer') if swin.type == 'SwinBackbone' and not is_mmpretrains else (swin.type,)
    if type_name(old) not in same_types:
        return False
    defaults = ARCHS[old.get('arch') or 'tiny']
    size = swin.size
    depths, heads = (list(old.get(name) or getattr(defaults, name)) for name in ('depths', 'num_heads'))
    window_size = old.get('window_size')
    by_stage = tuple(window_size) if isinstance(window_size, (list, tuple)) and len(window_size) > 2 else None
    stages = len(size.depths)  # RTMDet P6 adds a stage
    return (old.get('embed_dims') or defaults.embed_dims, depths[:stages], heads[:stages], by_stage) == (
        size.embed_dims,
        list(size.depths),
        list(size.num_heads),
        dict(swin.by_stage).get('window_size'),
    )


def _replace(cfg: Config, place: Place, swin: Swin, task: Task) -> list[str]:
    """Replace the backbone and rewrite its readers, in place. Return notes for the user."""
    key, model, backbone_name = place
    old = model[backbone_name]
    notes: list[str] = []
    if task == 'classification':
        rewire_classifier(model, backbone_name, swin.widths[-1], key)
        # A classifier that began at random does so again
        has_weights = 'Pretrained' in str([old, model.get('init_cfg')]) or bool(cfg.get('load_from'))
        new = swin.make_config(task, has_weights)
    else:
        new, notes = _rewire(cfg, place, swin, task)
    if count_bands(old) != 3:
        new['in_channels'] = old.in_channels
    if old.get('with_cp'):
        new['with_cp'] = True
    model[backbone_name] = ConfigDict(new)
    if 'pretrained' in model:
        model.pretrained = None
    if cfg.get('load_from'):
        cfg.load_from = None
    for outer in _iter_path(cfg.model, key):
        if 'Pretrained' in str(outer.get('init_cfg')):  # a checkpoint with the old backbone
            del outer.init_cfg
    keys = [other.backbone_key for other in _list_backbones(cfg.model)]
    other_keys = [other_key for other_key in keys if other_key != place.backbone_key]
    for outer in (cfg, *_iter_path(cfg.model, key)):
        before = copy.deepcopy(outer.get('data_preprocessor'))
        _normalize_as_imagenet(outer.get('data_preprocessor'))
        if other_keys and before != outer.get('data_preprocessor'):
            notes.append(f'note: {" and ".join(other_keys)} may get images with another normalisation than before')
    return notes


def _rewire(cfg: Config, place: Place, swin: Swin, task: Task) -> tuple[dict[str, Any], list[str]]:
    """Rewrite the readers of a backbone's maps, in place. Return the new backbone and notes for the user."""
    key, model, backbone_name = place
    is_segmentor = task == 'segmentation'
    neck_name = backbone_name.replace('backbone', 'neck')
    old_maps = find_backbone_maps(model[backbone_name], place.backbone_key)
    stages = _choose_stages(old_maps, model[backbone_name], is_segmentor, place.backbone_key)
    maps = SwappedMaps(old_maps, [MapShape(swin.widths[stage], 4 << stage) for stage in stages])
    neck = model.get(neck_name)
    if is_segmentor and isinstance(neck, dict) and type_name(neck) == 'Feature2Pyramid':
        del model[neck_name]  # makes a pyramid of a ViT's maps; Swin's maps are a pyramid
        neck = None
    if neck:
        is_list = isinstance(neck, (list, tuple))
        first = neck[0] if is_list else neck
        old_first = copy.deepcopy(first)
        neck_key = f'{key}.{neck_name}' + ('[0]' if is_list else '')
        used = rewire_neck(first, maps, neck_key)
        neck_maps = find_maps_after_neck(old_first, first, maps, used, neck_key)
        if neck_maps is not None and neck_maps.list_widths()[0] != neck_maps.list_widths()[1]:
            if not is_segmentor or is_list:
                raise ValueError(
                    f'{key}.{neck_name}: a {type_name(first)} without out_channels changes the channels of the heads'
                )
            rewire_segmentor(model, neck_maps, key, prune=False)
    elif is_segmentor:
        used = rewire_segmentor(model, maps, key, prune=True)
    else:
        used = rewire_detector(model, maps, key)
    if leaves_maps_unread(model, neck_name):
        cfg.find_unused_parameters = True
    return _configure(swin, task, tuple(stages[index] for index in used)), [
        f'note: readers of stage {stages[index] + 1} get stride {maps.new[index].stride}, before '
        f'{old_maps[index].stride:g}'
        for index in used
        if maps.new[index].stride != old_maps[index].stride
    ]


def _configure(swin: Swin, task: Task, outputs: tuple[int, ...]) -> dict[str, Any]:
    """Return a backbone that emits the maps of the stages `outputs`, without the stages behind these."""
    new = swin.make_config(task)
    if outputs != (0, 1, 2, 3):
        new['out_indices'] = outputs
    if outputs[-1] < 3:  # stages without a reader: a parameter without a gradient stops distributed training
        by_stage = dict(swin.by_stage, depths=swin.size.depths, num_heads=swin.size.num_heads, strides=(4, 2, 2, 2))
        new.update({name: values[: outputs[-1] + 1] for name, values in by_stage.items()})
    return new


def _choose_stages(old_maps: list[MapShape], backbone: ConfigDict, is_segmentor: bool, key: str) -> list[int]:
    """Return the Swin stage in the place of each map. C2 to C5 are stages 0 to 3.

    In a detector the strides are equal, because anchors and regions depend on the stride. Segmentation networks dilate
    their last stages, and resize all maps: there the last of four maps is stage 3 at any stride.
    """
    strides = [shape.stride for shape in old_maps]
    if is_segmentor and strides == sorted(strides) and min(strides) >= 4:
        if len(old_maps) == 4:
            return [0, 1, 2, 3]
        if 'num_stages' in backbone or 'depth' in backbone:  # a ResNet, whose index 0 is C2
            return sorted(backbone.get('out_indices', range(4)))
    stages = [STAGE_OF_STRIDE[stride] for stride in strides if stride in STAGE_OF_STRIDE]
    if len(stages) < len(strides) or any(b <= a for a, b in zip(stages, stages[1:])):
        shown = ', '.join(f'{stride:g}' for stride in strides)
        raise ValueError(f'{key}: it emits maps of stride {shown}, and Swin emits 4, 8, 16, 32, each once, in order')
    return stages


def _normalize_as_imagenet(preprocessor: Any) -> None:
    """Set the normalisation of Swin's weights: RGB, with the mean and standard deviation of ImageNet."""
    if not isinstance(preprocessor, dict):
        return
    if isinstance(preprocessor.get('data_preprocessor'), dict):
        _normalize_as_imagenet(preprocessor['data_preprocessor'])
    else:
        preprocessor.pop('rgb_to_bgr', None)
        name = type_name(preprocessor) if 'type' in preprocessor else CLASSIFIER_PREPROCESSORS[0]
        preprocessor.update(copy.deepcopy(IMAGENET))
        preprocessor['to_rgb' if name in CLASSIFIER_PREPROCESSORS else 'bgr_to_rgb'] = True
