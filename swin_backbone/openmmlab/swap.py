"""Put a Swin backbone into any config of mmdet or mmseg."""

import copy
from collections.abc import Iterator
from typing import Any, Union

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import MODELS

from ..analysis.meta import on_device
from ..archs import ARCHS
from .changes import summarize
from .consumers import Maps, after_neck, leaves_maps_unread, rewire_detector, rewire_neck, rewire_segmentor
from .probe import Level, backbone_levels, type_name
from .recipe import apply_recipe
from .swins import SWINS, Swin

RECIPES = ('swin', 'keep')
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
STAGE_OF_STRIDE: dict[float, int] = {4: 0, 8: 1, 16: 2, 32: 3}


def swap_backbone(
    cfg: Union[Config, dict], name: str, *, recipe: str = 'swin', verbose: bool = True, **backbone: Any
) -> Config:
    """A config with a Swin backbone in place of its own.

    What depends on the backbone follows: channels and indices in neck and heads, the images' normalisation, the
    weights that are loaded, and the optimizer. A config that has the toolbox's `SwinTransformer` of the same size
    gets another `type` and nothing else: its results are identical.

    Args:
        cfg: of mmdet or mmseg; it is left as it is.
        name: 'swin-t', 'swin-s', 'swin-b', 'swin-l' or 'swin-nano'.
        recipe: 'swin': the optimizer is the Swin recipe's, see `recipe.apply_recipe`; 'keep': the config's own.
        verbose: print what changed.
        backbone: arguments of the backbone that differ from the named one's, as window_size=12, init_cfg=None.

    Raises:
        ValueError: if something in the config cannot be placed, naming its key.

    Examples:
        >>> from mmengine.config import Config
        >>> from swin_backbone import swap_backbone
        >>> backbone = dict(type='SwinTransformer', embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24])
        >>> cfg = Config(dict(model=dict(backbone=backbone)))
        >>> swap_backbone(cfg, 'swin-t', verbose=False).model.backbone.type
        'SwinBackbone'
    """
    if name not in SWINS:
        raise ValueError(f'the backbone must be one of {list(SWINS)}, got {name!r}')
    if recipe not in RECIPES:
        raise ValueError(f'recipe must be one of {list(RECIPES)}, got {recipe!r}')
    before = cfg if isinstance(cfg, Config) else Config(cfg)
    after = copy.deepcopy(before)
    swin = SWINS[name]
    key, model = _model_with_backbone(after)
    segmentation = after.get('default_scope') == 'mmseg' or 'decode_head' in model
    notes: list[str] = []
    if _is_same(model.backbone, swin):
        model.backbone.type = swin.type
        model.backbone.update(backbone)
    else:
        notes = _replace(after, key, model, swin, segmentation)
        model.backbone.update(backbone)
        if recipe == 'swin':
            with on_device('meta'):
                layers = MODELS.build(dict(model.backbone, init_cfg=None)).layer_order()
            apply_recipe(after, f'{key}.backbone'.removeprefix('model.'), layers, segmentation)
        elif 'constructor' in (after.get('optim_wrapper') or {}):
            raise ValueError(
                f'optim_wrapper.constructor {after.optim_wrapper.constructor!r} is made for the backbone that goes; '
                "recipe 'swin' takes it out"
            )
    _import_swin_backbone(after)
    if verbose:
        text = '\n'.join([f'{name} into this config:', summarize(before, after), *notes])
        print_log(text, logger='current')
    return after


def _model_with_backbone(cfg: Config) -> tuple[str, ConfigDict]:
    """The dict that has the backbone, and its key: the model, or what a wrapper or tracker holds."""
    model = cfg.get('model')
    if not isinstance(model, dict):
        raise ValueError('model: the config has none, and so no backbone to swap')
    found = list(_with_backbone('model', model))
    if len(found) != 1:
        keys = [f'{key}.backbone' for key, _ in found]
        raise ValueError(f'model must have exactly one backbone to swap, got {keys}')
    return found[0]


def _with_backbone(key: str, node: Any):
    if isinstance(node, dict):
        if isinstance(node.get('backbone'), dict) and 'type' in node['backbone']:
            yield key, node
        else:
            for name, child in node.items():
                yield from _with_backbone(f'{key}.{name}', child)


def _path_to(model: ConfigDict, key: str) -> Iterator[ConfigDict]:
    """The dicts from the model to the one at `key`, as 'model.detector', which holds the backbone."""
    yield model
    for name in key.split('.')[1:]:
        model = model[name]
        yield model


def _is_same(old: ConfigDict, swin: Swin) -> bool:
    """Whether a backbone is a Swin of this size already, the toolbox's or ours."""
    kinds = [swin.type]
    if swin.type == 'SwinBackbone':
        kinds += ['SwinTransformer', 'mmdet.SwinTransformer', 'mmseg.SwinTransformer']
    if type_name(old) not in kinds:
        return False
    table, wanted = ARCHS[old.get('arch') or 'tiny'], ARCHS[swin.arch]
    depths, heads = (list(old.get(name) or getattr(table, name)) for name in ('depths', 'num_heads'))
    stages = len(wanted.depths)  # RTMDet P6 adds one to them
    return (old.get('embed_dims') or table.embed_dims, depths[:stages], heads[:stages]) == (
        wanted.embed_dims,
        list(wanted.depths),
        list(wanted.num_heads),
    )


def _replace(cfg: Config, key: str, model: ConfigDict, swin: Swin, segmentation: bool) -> list[str]:
    """Exchange the backbone and rewrite who reads it, in place; what a user should know beside that."""
    scope = cfg.get('default_scope') or ('mmseg' if segmentation else 'mmdet')
    levels = backbone_levels(model.backbone, scope, f'{key}.backbone')
    stages = _stages(levels, model.backbone, segmentation, f'{key}.backbone')
    maps = Maps(levels, [Level(swin.widths[stage], 4 << stage) for stage in stages])
    neck = model.get('neck')
    if segmentation and isinstance(neck, dict) and type_name(neck) == 'Feature2Pyramid':
        del model.neck  # it makes a pyramid of a ViT's maps, and Swin's are one
        neck = None
    if neck:
        listed = isinstance(neck, (list, tuple))
        first = neck[0] if listed else neck
        old_first = copy.deepcopy(first)
        neck_key = f'{key}.neck' + ('[0]' if listed else '')
        used = rewire_neck(first, maps, neck_key)
        behind = after_neck(old_first, first, maps, used, scope, neck_key)
        if behind.widths()[0] != behind.widths()[1]:
            if not segmentation or listed:
                raise ValueError(f'{key}.neck: a {type_name(first)} emits as many channels as it reads')
            rewire_segmentor(model, behind, key, prune=False)
    elif segmentation:
        used = rewire_segmentor(model, maps, key, prune=True)
    else:
        used = rewire_detector(model, maps, key)
    if leaves_maps_unread(model):
        cfg.find_unused_parameters = True

    old = model.backbone
    new = swin.config(segmentation)
    if old.get('in_channels', 3) != 3:
        new['in_channels'] = old.in_channels
    if old.get('with_cp'):
        new['with_cp'] = True
    outputs = tuple(stages[place] for place in used)
    if outputs != (0, 1, 2, 3):
        new['out_indices'] = outputs
    if outputs[-1] < 3:  # no stage that nobody sees: a parameter without a gradient stops distributed training
        arch, depth = ARCHS[swin.arch], outputs[-1] + 1
        new.update(depths=arch.depths[:depth], num_heads=arch.num_heads[:depth], strides=(4, 2, 2, 2)[:depth])
    model.backbone = ConfigDict(new)
    if 'pretrained' in model:
        model.pretrained = None
    if cfg.get('load_from'):
        cfg.load_from = None
    for holder in _path_to(cfg.model, key):  # a checkpoint of all of it has the old backbone in it
        if 'Pretrained' in str(holder.get('init_cfg')):
            del holder.init_cfg
    for node in (model.get('data_preprocessor'), cfg.model.get('data_preprocessor'), cfg.get('data_preprocessor')):
        _normalize_as_imagenet(node)
    return [
        f'note: what reads stage {stages[place]} gets stride {maps.new[place].stride} where it got '
        f'{levels[place].stride:g}'
        for place in used
        if maps.new[place].stride != levels[place].stride
    ]


def _stages(levels: list[Level], backbone: ConfigDict, segmentation: bool, key: str) -> list[int]:
    """The Swin stage in the place of each map: of the same stride, C2 to C5 are stages 0 to 3.

    Segmentation nets dilate their last stages, and resize whatever they get: there a map keeps its role, and the
    last of four is stage 3 at any stride. A detector's anchors and regions depend on the stride itself.
    """
    strides = [level.stride for level in levels]
    if segmentation and strides == sorted(strides) and min(strides) >= 4:
        if len(levels) == 4:
            return [0, 1, 2, 3]
        if 'num_stages' in backbone or 'depth' in backbone:  # the ResNets: C2 is number 0
            return sorted(backbone.get('out_indices', range(4)))
    stages = [STAGE_OF_STRIDE[stride] for stride in strides if stride in STAGE_OF_STRIDE]
    if len(stages) < len(strides) or any(b <= a for a, b in zip(stages, stages[1:])):
        shown = ', '.join(f'{stride:g}' for stride in strides)
        raise ValueError(f'{key}: it emits maps of stride {shown}, and Swin emits 4, 8, 16, 32, each once, in order')
    return stages


def _normalize_as_imagenet(preprocessor: Any) -> None:
    """Swin's weights were trained on RGB images less the mean of ImageNet, over its standard deviation."""
    if not isinstance(preprocessor, dict):
        return
    if isinstance(preprocessor.get('data_preprocessor'), dict):
        _normalize_as_imagenet(preprocessor['data_preprocessor'])
    else:
        preprocessor.pop('rgb_to_bgr', None)
        preprocessor.update(copy.deepcopy(IMAGENET))


def _import_swin_backbone(cfg: Config) -> None:
    imports = cfg.get('custom_imports') or ConfigDict(imports=[])
    names = [imports.imports] if isinstance(imports.imports, str) else list(imports.imports)
    if 'swin_backbone' not in names:
        cfg.custom_imports = ConfigDict(imports, imports=[*names, 'swin_backbone'])
