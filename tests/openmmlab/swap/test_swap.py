"""The settings that a swap writes into a config, and the refused configs."""

import pytest
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from swin_backbone import SwinBackbone, SwinLayerDecayOptimizerConstructor, swap_backbone
from swin_backbone.devices import on_device
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.swap import backbone as swap_module
from swin_backbone.workbench.process import prepare_process

FASTER = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'
CAFFE = 'mmdet::retinanet/retinanet_r50-caffe_fpn_1x_coco.py'
DINO = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
DEEPLAB = 'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py'


def swap(path, name='swin-t', **more):
    return swap_backbone(read_config(path), name, verbose=False, **more)


def test_faster_rcnn():
    before = read_config(FASTER)
    after = swap_backbone(before, 'swin-b', verbose=False)
    assert after.model.backbone.type == 'SwinBackbone'
    assert after.model.backbone.arch == 'base'
    assert after.model.backbone.init_cfg.checkpoint.endswith('swin_base_patch4_window7_224.pth')
    assert after.model.neck.in_channels == [128, 256, 512, 1024]
    assert 'swin_backbone' in after.custom_imports.imports
    assert after.model.rpn_head == before.model.rpn_head
    assert before.model.backbone.type == 'ResNet'  # the given config is unchanged


def test_unread_maps_and_normalisation():
    after = swap(CAFFE)
    assert after.model.backbone.out_indices == (1, 2, 3)
    assert after.model.neck.in_channels == [192, 384, 768]
    assert after.model.neck.start_level == 0
    assert after.model.data_preprocessor.mean == [123.675, 116.28, 103.53]
    assert after.model.data_preprocessor.bgr_to_rgb is True


def test_indices_of_segmentation_heads_move_with_the_maps():
    after = swap(DEEPLAB)
    assert after.model.backbone.out_indices == (0, 2, 3)
    head, auxiliary = after.model.decode_head, after.model.auxiliary_head
    assert (head.in_index, head.in_channels, head.c1_in_channels) == (2, 768, 96)
    assert (auxiliary.in_index, auxiliary.in_channels) == (1, 384)
    assert after.model.pretrained is None


def test_a_detector_keeps_its_strides():
    after = swap('mmdet::faster_rcnn/faster-rcnn_r50-caffe-dc5_1x_coco.py', 'swin-s3-t')  # C5 dilated to stride 16
    backbone = after.model.backbone
    assert (backbone.out_indices, backbone.depths, backbone.window_size) == ((2,), (2, 2, 6), (7, 7, 14))
    assert after.model.rpn_head.in_channels == after.model.roi_head.bbox_head.in_channels == 384
    assert after.model.rpn_head.anchor_generator.strides == [16]


@pytest.mark.parametrize('path', [FASTER, 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'])
def test_searched_windows_and_depths_come_with_weights(path):
    tiny, base = swap(path, 'swin-s3-t').model.backbone, swap(path, 'swin-s3-b').model.backbone
    assert tiny.window_size == base.window_size == (7, 7, 14, 7)
    assert 'depths' not in tiny
    assert base.depths == (2, 2, 30, 2)
    assert [cfg.init_cfg.checkpoint.rpartition('/')[2][:4] for cfg in (tiny, base)] == ['s3_t', 's3_b']
    again = swap_backbone(dict(model=dict(type='MaskRCNN', backbone=tiny)), 'swin-s3-t', verbose=False)
    assert again.model.backbone == tiny


def test_recipe_swin_exchanges_sgd():
    after = swap(FASTER)
    assert after.optim_wrapper.optimizer == dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05)
    assert set(after.optim_wrapper.paramwise_cfg.custom_keys) == {
        'absolute_pos_embed', 'relative_position_bias_table', 'w_msa.cpb_mlp', 'w_msa.logit_scale', 'norm',
    }  # fmt: skip
    assert swap(FASTER, recipe='keep').optim_wrapper == read_config(FASTER).optim_wrapper
    segmentation = swap(DEEPLAB)
    assert (segmentation.optim_wrapper.optimizer.lr, segmentation.optim_wrapper.optimizer.weight_decay) == (6e-5, 0.01)
    assert segmentation.param_scheduler[0].eta_min == 0  # the old value is above the new rate


@pytest.mark.parametrize('recipe', ['swin', 'keep'])
@pytest.mark.parametrize(
    'own',
    [
        SwinLayerDecayOptimizerConstructor,
        'SwinLayerDecayOptimizerConstructor',
        'mmengine.SwinLayerDecayOptimizerConstructor',
    ],
)
def test_both_recipes_keep_our_layer_decay(recipe, own):
    cfg = read_config(FASTER)
    wrapper = dict(
        type='OptimWrapper',
        constructor=own,
        optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        paramwise_cfg=dict(decay_rate=0.9),
    )
    cfg.optim_wrapper = wrapper
    after = swap_backbone(cfg, 'swin-nano', recipe=recipe, init_cfg=None, verbose=False)
    assert after.optim_wrapper == wrapper
    with DefaultScope.overwrite_default_scope('mmdet'), on_device('meta'):
        groups = build_optim_wrapper(MODELS.build(after.model), after.optim_wrapper).optimizer.param_groups
    assert {group['lr'] for group in groups} == {1e-4 * 0.9**layer for layer in range(10)}
    cfg.optim_wrapper.constructor = 'LearningRateDecayOptimizerConstructor'
    with pytest.raises(ValueError, match='made for the old backbone'):
        swap_backbone(cfg, 'swin-nano', recipe='keep', verbose=False)


def test_recipe_swin_keeps_what_a_detr_knows_of_its_backbone():
    after = swap(DINO)
    before = read_config(DINO)
    assert after.optim_wrapper.optimizer == before.optim_wrapper.optimizer
    keys = after.optim_wrapper.paramwise_cfg.custom_keys
    assert keys['backbone'] == dict(lr_mult=0.1)
    assert keys['backbone.stages.2.blocks.5.norm'] == dict(lr_mult=0.1, decay_mult=0.0)
    assert 'backbone.stages.2.blocks.6.norm' not in keys


@pytest.mark.parametrize('name', ['swin-nano', 'swinv2-nano'])
def test_recipe_swin_decays_no_norm_or_table(name):
    cfg = swap(DINO, name, init_cfg=None)
    with DefaultScope.overwrite_default_scope('mmdet'), on_device('meta'):
        model = MODELS.build(cfg.model)
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {name_of[id(group['params'][0])]: group['weight_decay'] for group in optimizer.param_groups}
    rates = {name_of[id(group['params'][0])]: group['lr'] for group in optimizer.param_groups}
    backbone = [name for name in decays if name.startswith('backbone.')]
    norms = {f'backbone.{name}' for name, module in model.backbone.named_modules() if isinstance(module, nn.LayerNorm)}
    tables = ('relative_position_bias_table', 'logit_scale', 'cpb_mlp.0.weight', 'cpb_mlp.2.weight', 'cpb_mlp.0.bias')
    without = {name for name in backbone if name.rpartition('.')[0] in norms or name.endswith(tables)}
    assert {name for name in backbone if decays[name] == 0} == without
    assert {rates[name] for name in backbone} == {cfg.optim_wrapper.optimizer.lr * 0.1}


def test_recipe_swin_keeps_what_says_that_parameters_are_shared():
    cfg = swap('mmdet::fpg/retinanet_r50_fpg_crop640_50e_coco.py', 'swin-nano', init_cfg=None)
    assert cfg.optim_wrapper.paramwise_cfg.bypass_duplicate is True
    with DefaultScope.overwrite_default_scope('mmdet'), on_device('meta'):
        build_optim_wrapper(revert_sync_batchnorm(MODELS.build(cfg.model)), cfg.optim_wrapper)


def test_no_checkpoint_of_the_old_model_is_loaded():
    path = 'mmdet::masktrack_rcnn/masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2019.py'
    assert 'Pretrained' in str(read_config(path).model)
    text = str(swap(path, 'swin-nano').model)
    assert 'Pretrained' not in text
    assert 'http' not in text


@pytest.mark.parametrize(
    ('path', 'message'),
    [
        ('pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes.py',
         'backbone: it emits maps of stride 8, 8, 8 in training and maps of stride 8'),
        ('setr/setr_vit-l-mla_8xb1-160k_ade20k-512x512.py',
         "neck: a MLANeck takes .*not a Swin's: The size of tensor"),
    ],
)  # fmt: skip
def test_maps_that_no_swin_emits_are_refused(path, message):
    with pytest.raises(ValueError, match=rf'^model\.{message}'):
        swap(f'mmseg::{path}')


def test_channels_of_a_head_without_a_convolution():
    cfg = swap('mmseg::segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512.py', 'swin-nano', init_cfg=None)
    assert cfg.model.decode_head.channels == cfg.model.decode_head.in_channels == 128
    with DefaultScope.overwrite_default_scope('mmseg'):
        MODELS.build(cfg.model)


def test_arguments_of_the_backbone_beat_the_names():
    backbone = swap(FASTER, window_size=12, init_cfg=None, drop_path_rate=0.1).model.backbone
    assert (backbone.window_size, backbone.init_cfg, backbone.drop_path_rate) == (12, None, 0.1)


def test_mmpretrains_swin_given_as_a_class_is_replaced():
    """It has other arguments than mmdet's and mmsegmentation's of the same name."""
    cfg = read_config(FASTER)
    arguments = dict(out_indices=(0, 1, 2, 3), init_cfg=None)
    theirs = type('SwinTransformer', (SwinBackbone,), dict(__module__='mmpretrain.models.backbones'))
    cfg.model.backbone = dict(type=theirs, arch='tiny', drop_rate=0.1, **arguments)
    cfg.model.neck.in_channels = [96, 192, 384, 768]
    assert 'drop_rate' not in swap_backbone(cfg, 'swin-t', verbose=False).model.backbone


def test_a_swap_twice_is_a_swap_once():
    once = swap(FASTER)
    assert swap_backbone(once, 'swin-t', verbose=False).to_dict() == once.to_dict()


def test_a_detector_inside_a_wrapper():
    after = swap('mmdet::soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py')
    assert after.model.detector.backbone.type == 'SwinBackbone'
    assert after.model.data_preprocessor.data_preprocessor.bgr_to_rgb is True


def test_the_summary_has_before_and_after(monkeypatch):
    printed = []
    monkeypatch.setattr(swap_module, 'print_log', lambda text, **_: printed.append(text))
    swap_backbone(read_config(DEEPLAB), 'swin-t')
    (text,) = printed
    assert 'model.decode_head.in_channels\n  - 2048\n  + 768' in text
    assert '  - ResNetV1c(depth=50' in text
    assert "  + SwinBackbone(arch='tiny'" in text
    assert 'note: readers of stage 4 get stride 32, before 8' in text


@pytest.mark.parametrize(
    ('config', 'change', 'message'),
    [
        (FASTER, dict(model=dict(neck=dict(in_channels=[256, 512, 1024, 1024]))), r'^model\.neck\.in_channels is'),
        (FASTER, dict(model=dict(neck=dict(rfp_backbone=dict(type='ResNet')))), r'^model\.neck\.rfp_backbone'),
        (FASTER, dict(optim_wrapper=dict(_delete_=True, type='OptimWrapperDict')), '^optim_wrapper has no optimizer'),
        (DEEPLAB, dict(model=dict(auxiliary_head=dict(in_channels=1000))), r'^model\.auxiliary_head\.in_channels is'),
        (FASTER, dict(model=None), '^model takes a dict with a backbone, got None'),
    ],
)
def test_what_it_cannot_place_it_names_and_leaves_alone(config, change, message):
    cfg = read_config(config)
    cfg.merge_from_dict(change)
    before = cfg.to_dict()
    with pytest.raises(ValueError, match=message):
        swap_backbone(cfg, 'swin-t', verbose=False)
    assert cfg.to_dict() == before


def test_prefixes_resolve_in_base_too(tmp_path):
    prepare_process()
    path = tmp_path / 'child.py'
    path.write_text(f'_base_ = {DEEPLAB!r}\n')
    assert Config.fromfile(path).model.decode_head == read_config(DEEPLAB).model.decode_head
    with pytest.raises(ValueError, match="got 'nowhere'"):
        read_config('nowhere::x/y.py')
    assert read_config('swin_backbone::atss/atss_swin-t-p4-w7_fpn_ms-crop-3x_coco.py').model.type == 'ATSS'


PURE_PYTHON = """
from mmdet.models import FPN, ResNet, RetinaHead, RetinaNet
from mmengine.config import read_base
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from torch.optim import SGD

default_scope = 'mmdet'
model = dict(
    type=RetinaNet,
    backbone=dict(type=ResNet, depth=50),
    neck=dict(type=FPN, in_channels=[256, 512, 1024, 2048], out_channels=256, start_level=1, num_outs=5),
    bbox_head=dict(type=RetinaHead, num_classes=3, in_channels=256))
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=SGD, lr=0.1))
"""


def test_a_config_in_pure_python(tmp_path):
    (tmp_path / 'config.py').write_text(PURE_PYTHON)
    after = swap(tmp_path / 'config.py')
    assert after.model.backbone.out_indices == (1, 2, 3)
    assert (after.model.neck.in_channels, after.model.neck.start_level) == ([192, 384, 768], 0)
    assert after.optim_wrapper.optimizer.type == 'AdamW'
