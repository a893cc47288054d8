"""Build models small enough to export in seconds, and compare graphs."""

import copy
import logging
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from helpers.openmmlab.jobs import open_predictor
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.swap.backbone import swap_backbone
from swin_backbone.workbench.export import export, formats, verify
from swin_backbone.workbench.export.runtime import resize

SWIN = dict(embed_dims=32, depths=(1, 2, 1, 1), num_heads=(2, 4, 8, 16), arch=None, init_cfg=None)
WIDTHS = [32, 64, 128, 256]


def require(format, *more):
    """Skip a test without the packages of a format, or without further packages."""
    for name in (*formats.PACKAGES[format], *more):
        pytest.importorskip(name, reason=f'{name} is not installed')


def judge(verification, least_iou=0.999):
    """Check the figures of a verification."""
    for figures in verification:
        assert 'difference' not in figures
        if 'equal_labels' in figures:
            assert figures['equal_labels'] > 0.999
            continue
        assert figures['objects'] > 5
        assert figures['matched'] == 1
        assert figures['min_iou'] > least_iou
        assert figures['score_error'] < 1e-4
        assert figures.get('min_mask_iou', 1) > 0.99


def small_swin(cls, **arguments):
    """Return a backbone with a single stage, a shifted second block and random weights."""
    settings = dict(embed_dims=32, depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,))
    return randomise(cls(**dict(settings, **arguments))).eval()


def randomise(model):
    """Randomise weights, so all parts of a model change the outputs."""
    for name, parameter in model.named_parameters():
        if 'norm' in name or 'bn' in name:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith('weight') else 0.0, 0.2)
        elif parameter.ndim > 1:
            torch.nn.init.xavier_normal_(parameter, 0.8 if parameter.ndim == 2 else 1.2)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
    return model


@MODELS.register_module(force=True)  # by name: OpenMMLab's mmengine cannot print a config with a class
class Strided(nn.Module):
    """A backbone of four convolutions. Its maps have the widths and strides of the small Swin."""

    def __init__(self, in_channels=3, out_indices=(0, 1, 2, 3)):
        super().__init__()
        self.in_channels, self.out_indices = in_channels, out_indices
        widths = [in_channels, *WIDTHS]
        self.steps = nn.ModuleList(
            nn.Conv2d(narrow, wide, 3, 4 if narrow == in_channels else 2, 1) for narrow, wide in zip(widths, WIDTHS)
        )

    def forward(self, x):
        maps = []
        for step in self.steps:
            x = step(x).tanh()
            maps.append(x)
        return tuple(maps[index] for index in self.out_indices)


def small_config(name, swin=True):
    """Return a published config with few levels, layers, channels and queries, for pictures up to 320x256.

    Args:
        name: a config of the project; a config of a toolbox, like 'mmdet::...'; or the path of a file.
        swin: the backbone is a narrow, shallow Swin. False: `Strided`.
    """
    return copy.deepcopy(_small_config(name, swin))


@lru_cache(maxsize=64)
def _small_config(name, swin):
    if '::' in name or Path(name).is_absolute():
        cfg = swap_backbone(read_config(name), 'swin-t', verbose=False)
    else:
        cfg = read_config(f'swin_backbone::{name}')
    cfg.model.backbone.update(SWIN)
    if 'pretrained' in cfg.model:
        cfg.model.pretrained = None
    if not swin:
        cfg.model.backbone = dict(type=Strided, out_indices=cfg.model.backbone.get('out_indices', (0, 1, 2, 3)))
    necks = cfg.model.get('neck', [])
    for neck in necks if isinstance(necks, list) else [necks]:
        if 'embed_dims' in neck:  # attention over the last map
            neck.update(embed_dims=WIDTHS[LEVELS - 1], num_heads=4)
        elif isinstance(neck.in_channels, int):  # DyHead, behind an FPN
            neck.num_blocks = 1
        else:
            neck.in_channels = WIDTHS[-len(neck.in_channels) :]
            if neck.get('num_outs', 0) > LEVELS:
                neck.update(num_outs=LEVELS, in_channels=neck.in_channels[: LEVELS + neck.get('start_level', 0)])
                cfg.model.backbone.out_indices = sorted(WIDTHS.index(width) for width in neck.in_channels)
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head.in_channels = WIDTHS[2]
    for head in (cfg.model.get('decode_head'), cfg.model.get('panoptic_head')):
        if head is not None and 'pixel_decoder' in head:
            head.update(in_channels=WIDTHS[: LEVELS + 1], strides=head.strides[: LEVELS + 1], num_queries=20)
            cfg.model.backbone.out_indices = list(range(LEVELS + 1))
            head.num_transformer_feat_level = head.pixel_decoder.num_outs = LEVELS
            head.pixel_decoder.encoder.num_layers = 1
            head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.num_levels = LEVELS
            head.transformer_decoder.num_layers = 1
            cfg.model.test_cfg.max_per_image = 50
        else:
            _narrow(head)
            if head is not None and 'kernel_update_head' in head:  # K-Net's stages
                head.update(num_stages=1, kernel_update_head=head.kernel_update_head[:1])
    # The width of some DETRs is fixed in the code, of DINO in that of mmdet 3.3.0
    is_two_stage = cfg.model.get('as_two_stage') and cfg.model.type in ('DeformableDETR', 'DINO', 'GroundingDINO')
    is_wide = is_two_stage or 'query_head' in cfg.model
    for part in () if is_wide else ('neck', 'rpn_head', 'roi_head', 'bbox_head'):
        _narrow(cfg.model.get(part))
    for part in ('rpn_head', 'roi_head', 'bbox_head', 'query_head'):
        _shorten(cfg.model.get(part))
    if 'encoder' in cfg.model:
        cfg.model.encoder.update(num_layers=1, num_cp=-1)
        cfg.model.decoder.num_layers = 2
        cfg.model.num_queries = 60
        if cfg.model.type in ('DeformableDETR', 'DINO', 'GroundingDINO'):
            cfg.model.num_feature_levels = LEVELS
            cfg.model.encoder.layer_cfg.self_attn_cfg.num_levels = LEVELS
            cfg.model.decoder.layer_cfg.cross_attn_cfg.num_levels = LEVELS
        cfg.model.test_cfg.max_per_img = 50
        if not is_wide:
            cfg.model.bbox_head.embed_dims = 32
            _narrow(cfg.model, DETR)
    if 'query_head' in cfg.model:
        cfg.model.query_head.num_query = 60
        cfg.model.test_cfg[0].max_per_img = 50
    elif cfg.model.get('test_cfg', {}).get('rpn'):
        cfg.model.test_cfg.rpn.update(nms_pre=200, max_per_img=50)
        cfg.model.test_cfg.rcnn.max_per_img = 50
        cfg.model.test_cfg.rcnn.nms.type = 'nms'  # of HTC++: soft NMS is refused
    kind = 'PackSegInputs' if cfg.default_scope == 'mmseg' else 'PackDetInputs'
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
    resize = dict(type='Resize', scale=(320, 256), keep_ratio=True)
    pads = [step for step in cfg.test_dataloader.dataset.pipeline if step['type'] == 'Pad']
    for step in pads:
        resize['scale'] = (320, 320)
        step.update(size=(320, 352)) if 'size' in step else None
    cfg.test_dataloader.dataset.pipeline = [
        dict(type='LoadImageFromFile'),
        resize,
        *pads,
        dict(type=kind, meta_keys=keys),
    ]
    return cfg


# (setting, published width): width in the tests
HEADS = {(name, 256): 32 for name in ('in_channels', 'out_channels', 'feat_channels', 'conv_out_channels')}
HEADS[('proposal_feature_channel', 256)] = 32
HEADS.update({('fc_out_channels', 1024): 64, ('c1_in_channels', 96): 32, ('c1_channels', 48): 16})
HEADS.update({('in_channels', 512): 32, ('out_channels', 512): 32})  # K-Net
DETR = {('embed_dims', 256): 32, ('num_feats', 128): 16, ('feedforward_channels', 1024): 64}
DETR[('feedforward_channels', 2048)] = 64
LEVELS = 2  # in a pyramid
SHORT = dict(stacked_convs=1, num_convs=1, num_shared_convs=1, num_ins=LEVELS, num_levels=LEVELS, num_layers=2)
SHORT.update(num_feature_levels=LEVELS)
PER_LEVEL = {'strides', 'featmap_strides', 'regress_ranges'}
STAGES = 2  # of boxes, in Sparse R-CNN and cascades
SIDES = ('tood_reg.weight', 'retina_reg.weight', 'fc_reg.weight', 'reg_offset_module.2.weight')


def _dicts_of(settings):
    """Yield all dicts of nested settings."""
    if isinstance(settings, dict):
        yield settings
    for value in settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ():
        yield from _dicts_of(value)


def _shorten(settings):
    """Reduce levels, layers and convolutions."""
    for part in _dicts_of(settings):
        for name in SHORT.keys() & part.keys():
            part[name] = min(part[name], SHORT[name])
        for name in PER_LEVEL.intersection(part):
            part[name] = part[name][:LEVELS]
        if part.get('type') == 'VFNetHead':  # the default anchors have five levels
            part.anchor_generator = dict(
                type='AnchorGenerator', ratios=[1.0], octave_base_scale=8, scales_per_octave=1, strides=part.strides
            )
            part.anchor_generator.center_offset = 0.0
        if part.get('num_stages', 0) > STAGES and 'stage_loss_weights' in part:
            part.update(num_stages=STAGES, stage_loss_weights=[1] * STAGES)
            heads = ('bbox_head', 'mask_head')
            part.update({name: part[name][:STAGES] for name in heads if isinstance(part.get(name), list)})


def _narrow(settings, widths=HEADS):
    """Narrow heads, to save time. UPerNet and FCN get the widths of the backbone's maps."""
    for part in _dicts_of(settings):
        channels = part.get('in_channels')
        for name, value in part.items():
            if isinstance(value, int) and (name, value) in widths:
                part[name] = widths[(name, value)]
        if channels in ([96, 192, 384, 768], 768):
            part.update(in_channels=WIDTHS if isinstance(channels, list) else WIDTHS[3], channels=32)


def save_checkpoint(cfg: Config, path: Path) -> Path:
    """Save a checkpoint of the config's model, with random weights that find objects."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = randomise(MODELS.build(copy.deepcopy(cfg.model)))  # a DETR changes its settings
    for name, parameter in model.named_parameters():
        if name.endswith(('retina_cls.bias', 'atss_cls.bias')):
            torch.nn.init.constant_(parameter, -2)
        if '.rtm_reg.' in name or name.endswith(SIDES):
            parameter.data *= 0.1  # large sides and offsets magnify rounding
        if name.endswith(('fc_cls.weight', 'cls_embed.weight', 'conv_seg.weight')):
            parameter.data *= 6  # spreads classes over the picture
        if name.endswith('rpn_cls.weight'):
            parameter.data *= 0.1  # without the factor most scores are 1, and the best proposals are random
        if '.rtm_reg.' in name and name.endswith('.bias'):
            torch.nn.init.constant_(parameter, 2)  # avoids thin boxes
        if 'cls_branches' in name and parameter.numel() == 1:
            torch.nn.init.zeros_(parameter)  # Grounding DINO's bias makes all scores small
        if name.endswith('init_proposal_bboxes.weight'):
            parameter.data = torch.rand_like(parameter) * 0.4 + 0.2
        if '.rtm_kernel.' in name and name.endswith('.bias'):
            parameter.data[-1] = 0.4  # the bias of a mask's logits, which are negative without it
        if '.mask_embed.' in name and parameter.ndim > 1:
            parameter.data *= 3
    heads = ('decode_head', 'query_head', 'roi_head', 'bbox_head', 'panoptic_head')
    head = next(head for head in heads if head in cfg.model)
    part = getattr(model, head) if head != 'roi_head' else model.roi_head.bbox_head
    if hasattr(part, 'conv_seg') and part.out_channels > 1:
        _level_classes(model.eval(), part)
    number = (part[0] if isinstance(part, torch.nn.ModuleList) else part).num_classes
    meta = dict(dataset_meta=dict(classes=[f'class {i}' for i in range(number)]))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
    logging.disable(logging.NOTSET)
    return path


def _level_classes(model, head):
    """Give all classes an equal mean logit. Without the change a single class wins everywhere."""
    with torch.no_grad():
        logits_BKHW = head(model.extract_feat(torch.randn(1, 3, 128, 160)))
        head.conv_seg.bias -= logits_BKHW.mean((0, 2, 3))


def compare_graph(cfg: Config, checkpoint: Path, texts=(), is_captured=False):
    """Compare the graph of a model, with free sizes, with the toolbox's model on pictures of two sizes.

    Args:
        is_captured: run what `torch.export` captures. A capture takes most of the time.

    Yields:
        The figures of `verify.compare` for each picture of a batch, and the toolbox's result.
    """
    predictor = open_predictor(cfg, str(checkpoint), 'cpu')
    if texts:
        pipeline = predictor.pipeline
        predictor.pipeline = lambda given: pipeline({**given, 'text': texts, 'custom_entities': True})
    graph = export.build_graph(predictor.model, cfg, 'model', None, texts)
    program = graph.module
    if is_captured:
        program = formats.capture(graph, export.make_example(graph)).module(check_guards=False)  # a file has no guards
    names = [port.name for port in graph.outputs]
    batch = 2 if graph.inputs[0].shape[0] == 'batch' else 1
    for _, picture, _ in export.generate_samples(graph)[1:]:
        expected = export.predict_result(predictor, picture)
        resized = resize(picture, graph.settings['preprocessing']['resize'])
        with torch.no_grad():
            outputs = program(torch.from_numpy(np.stack([resized] * batch)), torch.tensor(picture.shape[:2]))
        outputs = dict(zip(names, (one.numpy() for one in outputs)))
        for index in range(batch):
            of_one = (
                {name: value[index] for name, value in outputs.items()}
                if 'image' not in outputs
                else {name: value[outputs['image'] == index] for name, value in outputs.items()}
            )
            if 'masks' in of_one:
                of_one['masks'] = of_one['masks'].astype(bool)
            yield verify.compare(of_one, expected), expected
