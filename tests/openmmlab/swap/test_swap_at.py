"""`--at` selects the backbone that a Swin replaces."""

import copy

import pytest
import torch
from helpers.openmmlab.breadth import build, pictures_and_truth, train_one_step
from helpers.openmmlab.jobs import load_config
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from swin_backbone import SwinBackbone, swap_backbone
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.swap import backbone as swap_module

DEEPSORT = 'mmdet::deepsort/deepsort_faster-rcnn_r50_fpn_8xb2-4e_mot17train_test-mot17test.py'


class BevLike(BaseModel):
    """The parts of a camera and point detector that matter for a swap."""

    def __init__(self, img_backbone, img_neck, pts_backbone, data_preprocessor):
        super().__init__(data_preprocessor=data_preprocessor)
        self.img_backbone, self.img_neck, self.pts_backbone = map(MODELS.build, (img_backbone, img_neck, pts_backbone))
        self.head = nn.Conv2d(img_neck['out_channels'], 8, 1)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        maps = self.img_neck(self.img_backbone(inputs))
        seen = sum(self.head(x).mean() ** 2 for x in maps)
        points = self.pts_backbone(torch.rand(2, 4, 32, 32))[-1].mean()
        return dict(loss=seen + points**2)


def resnet(**more):
    return dict(type='mmdet.ResNet', depth=18, norm_cfg=dict(type='BN'), **more)


@pytest.fixture
def bev():
    MODELS.register_module('BevLike', module=BevLike, force=True)
    checkpoint = dict(type='Pretrained', checkpoint='torchvision://resnet18')
    yield Config(
        dict(
            default_scope='mmdet',
            model=dict(
                type='BevLike',
                data_preprocessor=dict(
                    type='DetDataPreprocessor', mean=[103.53, 116.28, 123.675], std=[1.0, 1.0, 1.0], bgr_to_rgb=False
                ),
                img_backbone=resnet(out_indices=(1, 2, 3), init_cfg=checkpoint),
                img_neck=dict(type='mmdet.FPN', in_channels=[128, 256, 512], out_channels=16, num_outs=3),
                pts_backbone=resnet(in_channels=4, out_indices=(3,)),
            ),
            optim_wrapper=dict(
                type='OptimWrapper',
                optimizer=dict(type='AdamW', lr=2e-4, weight_decay=0.01),
                paramwise_cfg=dict(custom_keys=dict(img_backbone=dict(lr_mult=0.1))),
            ),
        )
    )
    MODELS.module_dict.pop('BevLike')


def test_of_several_backbones_one_must_be_named(bev):
    keys = r"\['model.img_backbone', 'model.pts_backbone'\]"
    with pytest.raises(ValueError, match=f'^model takes exactly one backbone to swap, got {keys}; choose by --at'):
        swap_backbone(bev, 'swin-nano', verbose=False)
    with pytest.raises(ValueError, match=f'^model.img_neck: no backbone of the config is there; it has {keys}'):
        swap_backbone(bev, 'swin-nano', at='model.img_neck', verbose=False)
    del bev.model.pts_backbone
    assert swap_backbone(bev, 'swin-nano', verbose=False).model.img_backbone.type == 'SwinBackbone'


def test_neck_and_rates_of_a_backbone_with_another_name(bev, monkeypatch):
    messages = []
    monkeypatch.setattr(swap_module, 'print_log', lambda text, **_: messages.append(text))
    before = copy.deepcopy(bev)
    cfg = swap_backbone(bev, 'swin-nano', at='model.img_backbone', init_cfg=None)
    assert bev.to_dict() == before.to_dict()
    assert cfg.model.img_backbone.type == 'SwinBackbone'
    assert cfg.model.img_backbone.out_indices == (1, 2, 3)
    assert cfg.model.img_neck.in_channels == [64, 128, 256]
    assert cfg.model.pts_backbone == before.model.pts_backbone
    assert cfg.model.data_preprocessor.bgr_to_rgb is True
    assert 'note: model.pts_backbone may get images with another normalisation' in messages[0]
    keys = cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert keys['img_backbone.stages.0.blocks.1.norm'] == dict(lr_mult=0.1, decay_mult=0.0)

    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
    assert isinstance(model.img_backbone, SwinBackbone)
    data = dict(inputs=[torch.zeros(3, 64, 64, dtype=torch.uint8)] * 2, data_samples=None)
    losses, idle = train_one_step(cfg, model, data)
    assert torch.isfinite(losses['loss'])
    assert not idle


def test_the_detector_of_deepsort_and_not_its_reid():
    cfg = load_config(DEEPSORT, None, None, 'none', 'swin-nano', at='model.detector.backbone')
    before = read_config(DEEPSORT)
    assert cfg.model.reid == before.model.reid
    assert cfg.model.data_preprocessor == before.model.data_preprocessor
    assert 'init_cfg' not in cfg.model.detector  # weights with the old backbone
    detector = Config(
        dict(
            default_scope='mmdet',
            model=dict(cfg.model.detector, data_preprocessor=dict(type='DetDataPreprocessor')),
            optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4)),
        )
    )
    model = build(detector)
    data = pictures_and_truth(detector)
    for sample in data['data_samples']:
        sample.gt_instances.labels.zero_()  # pedestrians
    losses, idle = train_one_step(detector, model, data)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values())
    assert not idle


@pytest.mark.parametrize(('name', 'value'), [('recipe', 'keep'), ('recipe', 'swin'), ('at', 'model.detector.backbone')])
def test_what_needs_a_backbone_is_refused_without_one(name, value):
    with pytest.raises(ValueError, match=rf'^--{name} {value} needs --backbone, which is missing'):
        load_config(DEEPSORT, None, None, 'none', **{name: value})
