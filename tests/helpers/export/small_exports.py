"""Models small enough to export in seconds, and how they are looked at."""

import copy
import logging
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from swin_backbone.export import export, verify
from swin_backbone.export.runtime import resize
from swin_backbone.openmmlab.config.files import read_config
from swin_backbone.openmmlab.inference.predict import Predictor
from swin_backbone.openmmlab.swap.replace import swap_backbone

SWIN = dict(embed_dims=32, depths=(1, 2, 1, 1), num_heads=(2, 4, 8, 16), arch=None, init_cfg=None)
WIDTHS = [32, 64, 128, 256]


def small_swin(cls, **arguments):
    """A backbone of one stage, of which the second block is shifted, with weights far from their start."""
    settings = dict(embed_dims=32, depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,))
    return randomise(cls(**dict(settings, **arguments))).eval()


def randomise(model):
    """Weights with which all parts of a model have a say."""
    for name, parameter in model.named_parameters():
        if 'norm' in name or 'bn' in name:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith('weight') else 0.0, 0.2)
        elif parameter.ndim > 1:
            torch.nn.init.xavier_normal_(parameter, 0.8 if parameter.ndim == 2 else 1.2)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
    return model


def small_config(name, pipeline=True):
    """A published config, of a toolbox where it says so, with a narrow, shallow Swin and few queries, that sees
    pictures at 320x256 at most."""
    if '::' in name:
        cfg = swap_backbone(read_config(name), 'swin-t', verbose=False)
    else:
        cfg = read_config(f'swin_backbone::{name}')
    cfg.model.backbone.update(SWIN)
    necks = cfg.model.get('neck', [])
    for neck in necks if isinstance(necks, list) else [necks]:
        if 'embed_dims' in neck:  # attention over the last map
            neck.update(embed_dims=WIDTHS[-1], num_heads=4)
        else:
            neck.in_channels = WIDTHS[-len(neck.in_channels) :]
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head.in_channels = WIDTHS[2]
    for head in (cfg.model.get('decode_head'), cfg.model.get('panoptic_head')):
        if head is not None and 'pixel_decoder' in head:
            head.update(in_channels=WIDTHS, num_queries=20)
            head.pixel_decoder.encoder.num_layers = 1
            head.transformer_decoder.num_layers = 2
            cfg.model.test_cfg.max_per_image = 50
        else:
            _narrow(head)
    is_wide = cfg.model.get('as_two_stage') and cfg.model.type == 'DeformableDETR'  # its width is fixed in the code
    for part in () if is_wide else ('neck', 'rpn_head', 'roi_head', 'bbox_head'):
        _narrow(cfg.model.get(part))
    if 'encoder' in cfg.model:
        for part in ('encoder', 'decoder'):
            cfg.model[part].num_layers = 2
        cfg.model.num_queries = 60
        cfg.model.test_cfg.max_per_img = 50
        if not is_wide:
            cfg.model.bbox_head.embed_dims = 32
            _narrow(cfg.model, DETR)
    if cfg.model.get('test_cfg', {}).get('rpn'):
        cfg.model.test_cfg.rpn.update(nms_pre=200, max_per_img=100)
        cfg.model.test_cfg.rcnn.update(max_per_img=30)
    kind = 'PackSegInputs' if cfg.default_scope == 'mmseg' else 'PackDetInputs'
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
    if pipeline:
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


# Widths of published heads, and those of the tests
HEADS = {(name, 256): 32 for name in ('in_channels', 'out_channels', 'feat_channels', 'conv_out_channels')}
HEADS[('proposal_feature_channel', 256)] = 32
HEADS.update({('fc_out_channels', 1024): 64, ('c1_in_channels', 96): 32, ('c1_channels', 48): 16})
HEADS.update({('in_channels', 512): 32, ('out_channels', 512): 32})  # of K-Net
DETR = {('embed_dims', 256): 32, ('num_feats', 128): 16, ('feedforward_channels', 1024): 64}
DETR[('feedforward_channels', 2048)] = 64


def _narrow(settings, widths=HEADS):
    """The heads of published configs have 256 channels, which is slow; UPerNet and FCN read the backbone's maps."""
    if isinstance(settings, list):
        for one in settings:
            _narrow(one, widths)
    elif isinstance(settings, dict):
        for name, value in settings.items():
            if isinstance(value, int) and (name, value) in widths:
                settings[name] = widths[(name, value)]
            elif name == 'in_channels' and value == [96, 192, 384, 768]:
                settings.update(in_channels=WIDTHS, channels=32)
            elif name == 'in_channels' and value == 768:
                settings.update(in_channels=WIDTHS[3], channels=32)
            else:
                _narrow(value, widths)


def save_checkpoint(cfg: Config, path: Path) -> Path:
    """A checkpoint of the config's model, with random weights that find objects."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = randomise(MODELS.build(copy.deepcopy(cfg.model)))  # a DETR changes its settings
    is_sparse = cfg.model.get('rpn_head', {}).get('type') == 'EmbeddingRPNHead'
    for name, parameter in model.named_parameters():
        if name.endswith(('retina_cls.bias', 'atss_cls.bias')):
            torch.nn.init.constant_(parameter, -2)
        if name.endswith(('tood_reg.weight', 'reg_offset_module.2.weight')) or '.rtm_reg.' in name:
            parameter.data *= 0.1  # or sides and offsets magnify rounding
        if name.endswith(('fc_cls.weight', 'cls_embed.weight', 'conv_seg.weight')):
            parameter.data *= 6  # so that classes differ from place to place
        if name.endswith('rpn_cls.weight'):
            parameter.data *= 0.1  # or most scores are equal, at 1, and which proposals are the best is chance
        if '.rtm_reg.' in name and name.endswith('.bias'):
            torch.nn.init.constant_(parameter, 2)  # or boxes are slivers
        if 'image_pool' in name:
            parameter.data *= 0.05  # or every place has the same class
        if name.endswith('init_proposal_bboxes.weight'):
            parameter.data = torch.rand_like(parameter) * 0.4 + 0.2
        if name.endswith('.fc_reg.weight') and is_sparse:
            parameter.data *= 0.1
        if '.mask_embed.' in name and parameter.ndim > 1:
            parameter.data *= 3
    head = next(h for h in ('decode_head', 'roi_head', 'bbox_head', 'panoptic_head') if h in cfg.model)
    part = getattr(model, head) if head != 'roi_head' else model.roi_head.bbox_head
    number = (part[0] if isinstance(part, torch.nn.ModuleList) else part).num_classes
    meta = dict(dataset_meta=dict(classes=[f'class {i}' for i in range(number)]))
    torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
    logging.disable(logging.NOTSET)
    return path


def compare_eager(cfg: Config, checkpoint: Path):
    """How alike what the graph's module computes, on a batch of two, and what the toolbox's model does."""
    predictor = Predictor(cfg, str(checkpoint), 'cpu')
    graph = export.graph_of(predictor.model, cfg, 'model', None)
    names = [port.name for port in graph.outputs]
    for picture in export.made_pictures(graph)[1:]:
        wanted = export.result_of(predictor, picture)
        resized = resize(picture, graph.settings['preprocessing']['resize'])
        with torch.no_grad():
            outputs = graph.module(torch.from_numpy(np.stack([resized] * 2)), torch.tensor(picture.shape[:2]))
        outputs = dict(zip(names, (one.numpy() for one in outputs)))
        for index in range(2):
            of_one = (
                {name: value[index] for name, value in outputs.items()}
                if 'image' not in outputs
                else {name: value[outputs['image'] == index] for name, value in outputs.items()}
            )
            if 'masks' in of_one:
                of_one['masks'] = of_one['masks'].astype(bool)
            yield verify.compare(of_one, wanted), wanted
