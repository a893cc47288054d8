"""Convert whole models for mmdet and mmseg, load strictly, and compare with the source framework."""

import pickle

import numpy as np
import pytest
import torch
from helpers.adapters.detectron2_models import CLASSES, detectron2_source, mask2former_cfg, maskdino_cfg
from helpers.adapters.frameworks import require
from helpers.checkpoints.origins import official_backbone
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, convert_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint
from swin_backbone.openmmlab.config.files import read_config

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')
WIDTHS = [32, 64, 128, 256]
SWIN = dict(embed_dim=32, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16], window_size=7)
X = torch.linspace(-1, 1, 2 * 3 * 130 * 162).view(2, 3, 130, 162).mul(97).sin()
BACKBONE = dict(_delete_=True, type='SwinBackbone', arch='nano', drop_path_rate=0.0)


def spread(model):
    """Randomise all weights, so a swap of two weights changes the outputs."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=0.05)
    for name, buffer in model.named_buffers():
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)
        elif name.endswith('running_mean'):
            buffer.normal_(std=0.1)
    return model.eval()


def build(toolbox, config, **head):
    """Build the model of a config of this package, with a small backbone."""
    from mmengine.registry import MODELS, init_default_scope

    cfg = read_config(config)
    cfg.merge_from_dict({'model': {'backbone': BACKBONE, **head}})
    init_default_scope(toolbox)
    return MODELS.build(cfg.model).eval()


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


def converted(tmp_path, state, to, save=torch.save):
    save(state, tmp_path / 'source.pth')
    said = convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', to)
    return read_checkpoint(tmp_path / 'target.pth')['state_dict'], said


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
    state, said = converted(tmp_path, theirs.state_dict(), toolbox)
    assert said.endswith('left out: 1 outside the backbone')  # criterion.empty_weight
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
    state, said = converted(tmp_path, theirs.state_dict(), 'mmseg')
    assert said.endswith('left out: nothing')
    ours = build(
        'mmseg', 'configs/upernet/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
        decode_head=dict(in_channels=WIDTHS, num_classes=CLASSES, norm_cfg=dict(type='BN')),
        auxiliary_head=dict(in_channels=128, num_classes=CLASSES, norm_cfg=dict(type='BN')),
    )  # fmt: skip
    ours.load_state_dict(state, strict=True)
    maps = ours.backbone(X)
    logits = ours.decode_head(maps)
    expected = theirs.decode_head(theirs.backbone(X).feature_maps)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4)
    auxiliary = theirs.auxiliary_head(theirs.backbone(X).feature_maps)
    torch.testing.assert_close(ours.auxiliary_head(maps), auxiliary, rtol=1e-3, atol=1e-4)
    assert logits.std() > 1e-2


def detectron2_names(state):
    """Rename mmdet's weights to names of facebookresearch/Mask2Former. The list is written by hand."""
    renamed = {f'backbone.{key}': v for key, v in official_backbone(
        {key.removeprefix('backbone.'): v for key, v in state.items() if key.startswith('backbone.')}
    ).items()}  # fmt: skip
    for key, value in state.items():
        owner, _, rest = key.partition('.')
        if owner == 'backbone':
            continue
        part, _, leaf = rest.partition('.')
        if part == 'pixel_decoder':
            for ours, theirs in (
                ('input_convs.', 'input_proj.'), ('.conv.', '.0.'), ('.gn.', '.1.'),
                ('level_encoding.weight', 'transformer.level_embed'), ('encoder.layers', 'transformer.encoder.layers'),
                ('norms.0', 'norm1'), ('norms.1', 'norm2'), ('ffn.layers.0.0', 'linear1'), ('ffn.layers.1', 'linear2'),
                ('lateral_convs.0.0.', 'adapter_1.'), ('lateral_convs.0.1.', 'adapter_1.norm.'),
                ('output_convs.0.0.', 'layer_1.'), ('output_convs.0.1.', 'layer_1.norm.'),
                ('mask_feature.', 'mask_features.'),
            ):  # fmt: skip
                leaf = leaf.replace(ours, theirs)
            renamed[f'sem_seg_head.pixel_decoder.{leaf}'] = value
            continue
        name = rest.replace('cls_embed', 'class_embed').replace('transformer_decoder.post_norm', 'decoder_norm')
        for ours, theirs in (('0', '0'), ('2', '1'), ('4', '2')):
            name = (
                name.replace(f'mask_embed.{ours}.', f'mask_embed.layers.{theirs}.', 1) if 'layers' not in name else name
            )
        if name.startswith('transformer_decoder.layers.'):
            _, _, number, layer = name.split('.', 3)
            for ours, theirs in (
                ('norms.0', 'cross_attention_layers.{}.norm'), ('norms.1', 'self_attention_layers.{}.norm'),
                ('norms.2', 'ffn_layers.{}.norm'), ('cross_attn.attn', 'cross_attention_layers.{}.multihead_attn'),
                ('self_attn.attn', 'self_attention_layers.{}.self_attn'),
                ('ffn.layers.0.0', 'ffn_layers.{}.linear1'), ('ffn.layers.1', 'ffn_layers.{}.linear2'),
            ):  # fmt: skip
                if layer.startswith(ours):
                    name = f'transformer_{theirs.format(number)}{layer.removeprefix(ours)}'
        renamed[f'sem_seg_head.predictor.{name}'] = value
    renamed['criterion.empty_weight'] = torch.ones(CLASSES + 1)
    return renamed


def as_detectron2_publishes(state, path):
    with path.open('wb') as file:
        arrays = {key: value.numpy() for key, value in state.items()}
        pickle.dump({'model': arrays, '__author__': 'MaskFormer', 'matching_heuristics': True}, file)


@pytest.mark.parametrize('save', [torch.save, as_detectron2_publishes])
@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_mask2former_of_detectron2(tmp_path, toolbox, save):
    expected = spread(mask2former(toolbox)).state_dict()
    state, said = converted(tmp_path, detectron2_names(expected), toolbox, save)
    assert '1 outside the backbone' in said
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(state[key], value), key


@pytest.mark.parametrize('protocol', [2, 4, 5])
def test_arrays_of_another_machine(tmp_path, protocol):
    """Read big-endian arrays in column order."""
    state = randomised().state_dict()
    arrays = {f'backbone.{key}': value.numpy() for key, value in official_backbone(state).items()}
    arrays = {key: np.asfortranarray(array).astype(array.dtype.newbyteorder('>')) for key, array in arrays.items()}
    (tmp_path / 'source.pkl').write_bytes(pickle.dumps({'model': arrays}, protocol=protocol))
    convert_checkpoint(tmp_path / 'source.pkl', tmp_path / 'target.pth', 'mmdet')
    written = read_checkpoint(tmp_path / 'target.pth')['state_dict']
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], value) for key, value in state.items())


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


@pytest.mark.peer
@torch.no_grad()
def test_maskdino_of_detectron2(tmp_path):
    """mmdet lacks the MaskDINO head. The head's names stay; the backbone gets the names of this package."""
    with detectron2_source('MaskDINO'):
        from detectron2.modeling import build_model

        theirs = spread(build_model(maskdino_cfg()))
        maps = theirs.backbone(X)
    source = theirs.state_dict()
    state, said = converted(tmp_path, source, 'mmdet')
    assert 'outside the backbone' not in said
    around = {key: value for key, value in source.items() if not key.startswith('backbone.')}
    assert around.keys() == {key for key in state if not key.startswith('backbone.')}
    assert all(torch.equal(state[key], value) for key, value in around.items())
    backbone = SwinBackbone(arch='nano').eval()
    weights = {key.removeprefix('backbone.'): v for key, v in state.items() if key.startswith('backbone.')}
    backbone.load_state_dict(weights, strict=True)
    torch.testing.assert_close(list(backbone(X)), list(maps.values()), rtol=1e-3, atol=1e-4)


def test_what_has_no_name_here_is_an_error(tmp_path):
    state = detectron2_names(mask2former('mmdet').state_dict())
    state['sem_seg_head.predictor.extra.weight'] = torch.zeros(1)
    with pytest.raises(
        CheckpointError, match=r'sem_seg_head\.predictor\.extra\.weight is no weight that a Mask2Former'
    ):
        converted(tmp_path, state, 'mmdet')


DETECTORS = [
    'mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    'cascade_rcnn/cascade-mask-rcnn_swin-t-p4-w7_fpn_4conv1fc-giou_ms-crop-3x_coco.py',
    'htc/htc_swin-b-p4-w7-in22k-pre_fpn_instaboost-ms-400-1400-6x_coco.py',
    'upernet/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py',
]


@pytest.mark.parametrize('config', DETECTORS)
def test_the_official_detectors_and_segmentors(tmp_path, config):
    """mmdet 2.11 and mmseg 0.11 in Swin-Transformer-Object-Detection at c7b2011 and -Semantic-Segmentation at 87e6f90.

    Necks and heads have equal names in mmdet 3 and mmseg 1. The background is the last class in all versions.
    """
    segments = 'upernet' in config
    neck = {} if segments else dict(neck=dict(in_channels=WIDTHS))
    if 'htc' in config:
        fpn = dict(type='FPN', in_channels=WIDTHS, out_channels=256, num_outs=5)
        neck = dict(neck=[dict(type='GlobalAttention', embed_dims=256, num_heads=8), fpn])
    heads = dict(decode_head=dict(in_channels=WIDTHS), auxiliary_head=dict(in_channels=128)) if segments else {}
    model = build('mmseg' if segments else 'mmdet', f'configs/{config}', **neck, **heads)
    expected = model.state_dict()
    of_backbone = {key.removeprefix('backbone.'): v for key, v in expected.items() if key.startswith('backbone.')}
    source = {f'backbone.{key}': value for key, value in official_backbone(of_backbone).items()}
    source |= {key: value for key, value in expected.items() if not key.startswith('backbone.')}
    state, _ = converted(tmp_path, {'state_dict': source, 'meta': {'mmdet_version': '2.11.0'}}, 'mmdet')
    model.load_state_dict(state, strict=True)
    assert all(torch.equal(state[key], value) for key, value in expected.items())


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
    written, said = converted(tmp_path, {'state_dict': {**source, **around, **of_lvis}}, 'mmdet')
    assert ' 1 outside the backbone' in said
    around['query_head.dn_generator.label_embedding.weight'] = around.pop('query_head.label_embedding.weight')
    assert written.keys() == {*around, *(f'backbone.{key}' for key in state)}
    for key, value in {**around, **{f'backbone.{key}': value for key, value in state.items()}}.items():
        assert torch.equal(written[key], value), key
