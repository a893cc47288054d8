"""Convert whole models for mmdet and mmseg, load strictly, and compare with the source framework."""

import functools
import re

import pytest
import torch
from helpers.adapters.detectron2_models import CLASSES, detectron2_source, mask2former_cfg
from helpers.adapters.frameworks import require
from helpers.checkpoints.origins import official_backbone
from helpers.models.small_models import randomised

from swin_backbone import convert_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint
from swin_backbone.openmmlab.config_files import read_config

WIDTHS = [32, 64, 128, 256]
SWIN = dict(embed_dim=32, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16], window_size=7)
X = torch.linspace(-1, 1, 2 * 3 * 130 * 162).view(2, 3, 130, 162).mul(97).sin()
BACKBONE = dict(_delete_=True, type='SwinBackbone', arch='nano', drop_path_rate=0.0)


def build(toolbox, config, **head):
    """Build the model of a config of this package, with a small backbone."""
    from mmengine.registry import MODELS, init_default_scope

    cfg = read_config(config)
    cfg.merge_from_dict({'model': {'backbone': BACKBONE, **head}})
    init_default_scope(toolbox)
    return MODELS.build(cfg.model).eval()


def spread(model):
    """Randomise all weights, so a swap of two weights changes the outputs."""
    for name, parameter in model.named_parameters():
        is_norm = ('norm' in name or '.bn.' in name or '.gn.' in name) and name.endswith('weight')
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.05)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
        elif name.endswith('running_mean'):
            buffer.normal_(std=0.1)
    return model.eval()


def mask2former(toolbox):
    head = dict(in_channels=WIDTHS, num_queries=9)
    head['transformer_decoder'] = dict(num_layers=3)
    head['pixel_decoder'] = dict(encoder=dict(num_layers=2))
    loss = dict(loss_cls=dict(class_weight=[1.0] * CLASSES + [0.1]))
    if toolbox == 'mmseg':
        config = 'configs/mask2former/mask2former_swin-t_8xb2-160k_ade20k-512x512.py'
        return build('mmseg', config, decode_head={**head, **loss, 'num_classes': CLASSES})
    config = 'configs/mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco.py'
    head |= dict(num_things_classes=CLASSES, num_stuff_classes=0, **loss)
    return build('mmdet', config, panoptic_head=head, panoptic_fusion_head=dict(num_things_classes=CLASSES))


def outputs_of(model):
    """Return the logits of classes and masks from the last layer of mmdet's Mask2Former."""
    head = model.panoptic_head if hasattr(model, 'panoptic_head') else model.decode_head
    with torch.no_grad():
        classes, masks = head(model.backbone(X), [None] * len(X))
    return classes[-1], masks[-1]


def converted(tmp_path, state, to):
    torch.save(state, tmp_path / 'source.pth')
    message = convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', to)
    return read_checkpoint(tmp_path / 'target.pth')['state_dict'], message


@pytest.fixture(scope='module')
def transformers():
    return require('transformers')


@pytest.mark.toolboxes
@pytest.mark.peer
@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_mask2former_of_transformers(tmp_path, transformers, toolbox):
    swin = transformers.SwinConfig(**SWIN, drop_path_rate=0.0, out_features=[f'stage{i}' for i in (1, 2, 3, 4)])
    config = transformers.Mask2FormerConfig(
        backbone_config=swin, num_labels=CLASSES, num_queries=9, encoder_layers=2, decoder_layers=4
    )
    theirs = spread(transformers.Mask2FormerForUniversalSegmentation(config))
    state, message = converted(tmp_path, theirs.state_dict(), toolbox)
    assert message.endswith('left out: 1 outside the backbone')  # criterion.empty_weight
    ours = mask2former(toolbox)
    ours.load_state_dict(state, strict=True)
    classes, masks = outputs_of(ours)
    with torch.no_grad():
        expected = theirs(X)
    torch.testing.assert_close(classes, expected.class_queries_logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(masks, expected.masks_queries_logits, rtol=1e-3, atol=1e-3)
    assert masks.std() > 1e-2


@pytest.mark.toolboxes
@pytest.mark.peer
@torch.no_grad()
def test_upernet_of_transformers(tmp_path, transformers):
    swin = transformers.SwinConfig(**SWIN, drop_path_rate=0.0, out_features=[f'stage{i}' for i in (1, 2, 3, 4)])
    config = transformers.UperNetConfig(backbone_config=swin, num_labels=CLASSES, auxiliary_in_channels=128)
    theirs = spread(transformers.UperNetForSemanticSegmentation(config))
    state, message = converted(tmp_path, theirs.state_dict(), 'mmseg')
    assert message.endswith('left out: nothing')
    ours = build(
        'mmseg', 'configs/upernet/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
        decode_head=dict(in_channels=WIDTHS, num_classes=CLASSES, norm_cfg=dict(type='BN')),
        auxiliary_head=dict(in_channels=128, num_classes=CLASSES, norm_cfg=dict(type='BN')),
    )  # fmt: skip
    ours.load_state_dict(state, strict=True)
    maps, expected_maps = ours.double().backbone(X.double()), theirs.double().backbone(X.double()).feature_maps
    logits = ours.decode_head(maps)
    torch.testing.assert_close(logits, theirs.decode_head(expected_maps))
    torch.testing.assert_close(ours.auxiliary_head(maps), theirs.auxiliary_head(expected_maps))
    assert logits.std() > 1e-2


LAYER = r'predictor\.transformer_decoder\.layers\.(\d)\.'
RENAMES = (  # mmdet's names, and those of facebookresearch/Mask2Former; written by hand
    (r'\w+_head\.(pixel_decoder)', r'sem_seg_head.\1'),
    (r'(panoptic|decode)_head\.', 'sem_seg_head.predictor.'),
    (r'input_convs\.(\d)\.conv', r'input_proj.\1.0'),
    (r'input_convs\.(\d)\.gn', r'input_proj.\1.1'),
    (r'level_encoding\.weight', 'transformer.level_embed'),
    (r'pixel_decoder\.encoder', 'pixel_decoder.transformer.encoder'),
    (r'(encoder.*)norms\.0', r'\1norm1'),
    (r'(encoder.*)norms\.1', r'\1norm2'),
    (r'(encoder.*)ffn\.layers\.0\.0', r'\1linear1'),
    (r'(encoder.*)ffn\.layers\.1', r'\1linear2'),
    (r'lateral_convs\.0\.conv', 'adapter_1'),
    (r'lateral_convs\.0\.gn', 'adapter_1.norm'),
    (r'output_convs\.0\.conv', 'layer_1'),
    (r'output_convs\.0\.gn', 'layer_1.norm'),
    (r'mask_feature\.', 'mask_features.'),
    (LAYER + r'norms\.0', r'predictor.transformer_cross_attention_layers.\1.norm'),
    (LAYER + r'norms\.1', r'predictor.transformer_self_attention_layers.\1.norm'),
    (LAYER + r'norms\.2', r'predictor.transformer_ffn_layers.\1.norm'),
    (LAYER + r'cross_attn\.attn', r'predictor.transformer_cross_attention_layers.\1.multihead_attn'),
    (LAYER + r'self_attn\.attn', r'predictor.transformer_self_attention_layers.\1.self_attn'),
    (LAYER + r'ffn\.layers\.0\.0', r'predictor.transformer_ffn_layers.\1.linear1'),
    (LAYER + r'ffn\.layers\.1', r'predictor.transformer_ffn_layers.\1.linear2'),
    (r'transformer_decoder\.post_norm', 'decoder_norm'),
    ('cls_embed', 'class_embed'),
    (r'mask_embed\.0', 'mask_embed.layers.0'),
    (r'mask_embed\.2', 'mask_embed.layers.1'),
    (r'mask_embed\.4', 'mask_embed.layers.2'),
)


def detectron2_names(state):
    """Rename mmdet's weights to names of facebookresearch/Mask2Former."""
    backbone = {key.removeprefix('backbone.'): v for key, v in state.items() if key.startswith('backbone.')}
    renamed = {f'backbone.{key}': value for key, value in official_backbone(backbone).items()}
    for key in [key for key in state if not key.startswith('backbone.')]:
        renamed[functools.reduce(lambda name, row: re.sub(row[0], row[1], name), RENAMES, key)] = state[key]
    return {**renamed, 'criterion.empty_weight': torch.ones(CLASSES + 1)}


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_mask2former_of_detectron2(tmp_path, toolbox):
    expected = spread(mask2former(toolbox)).state_dict()
    state, message = converted(tmp_path, detectron2_names(expected), toolbox)
    assert '1 outside the backbone' in message
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state[key], value), key


@pytest.mark.peer
def test_mask2former_as_it_runs_in_detectron2(tmp_path):
    with detectron2_source('Mask2Former'):
        from detectron2.modeling import build_model

        theirs = spread(build_model(mask2former_cfg()))
        with torch.no_grad():
            expected = theirs.sem_seg_head(theirs.backbone(X))
    state, _ = converted(tmp_path, theirs.state_dict(), 'mmdet')
    ours = mask2former('mmdet')
    ours.load_state_dict(state, strict=True)
    classes, masks = outputs_of(ours)
    torch.testing.assert_close(classes, expected['pred_logits'], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(masks, expected['pred_masks'], rtol=1e-3, atol=1e-3)


def test_what_has_no_name_here_is_an_error(tmp_path):
    state = detectron2_names(mask2former('mmdet').state_dict())
    state['sem_seg_head.predictor.extra.weight'] = torch.zeros(1)
    with pytest.raises(
        CheckpointError, match=r'sem_seg_head\.predictor\.extra\.weight is no weight that a Mask2Former'
    ):
        converted(tmp_path, state, 'mmdet')


def test_co_detr_of_its_own_repository(tmp_path):
    """Co-DETR's head owns the label embedding. In projects/CO-DETR of mmdetection a generator owns the embedding."""
    state = randomised().state_dict()
    source = {f'backbone.{key}': value for key, value in official_backbone(state).items()}
    around = {
        'neck.convs.0.conv.weight': torch.rand(4, 4, 1, 1),
        'query_head.transformer.encoder.layers.0.attentions.0.value_proj.weight': torch.rand(4, 4),
        'query_head.label_embedding.weight': torch.rand(80, 4),
        'rpn_head.rpn_conv.weight': torch.rand(4, 4, 3, 3),
        'roi_head.0.bbox_head.fc_cls.weight': torch.rand(81, 4),
        'bbox_head.0.atss_cls.weight': torch.rand(80, 4, 3, 3),
    }
    of_lvis = {'query_head.loss_cls.fed_loss_weight': torch.rand(80)}  # class weights of a loss
    written, message = converted(tmp_path, {'state_dict': {**source, **around, **of_lvis}}, 'mmdet')
    assert ' 1 outside the backbone' in message
    around['query_head.dn_generator.label_embedding.weight'] = around.pop('query_head.label_embedding.weight')
    assert written.keys() == {*around, *(f'backbone.{key}' for key in state)}
    for key, value in {**around, **{f'backbone.{key}': value for key, value in state.items()}}.items():
        assert torch.equal(written[key], value), key
