"""A Swin in classifiers of mmpretrain, and in mmdet's re-identification: it trains and predicts, or is refused."""

import pytest
import torch
from helpers.openmmlab.breadth import build, pictures_and_classes, predict, train_one_step
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, DefaultScope

from swin_backbone import SwinBackbone, SwinV2Backbone, swap_backbone
from swin_backbone.openmmlab.config_files import read_config

pytestmark = pytest.mark.toolboxes

RESNET = 'mmpretrain::resnet/resnet50_8xb32_in1k.py'
CONVNEXT = 'mmpretrain::convnext/convnext-tiny_32xb128_in1k.py'
SWIN = 'mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py'
FINE_TUNED = 'mmpretrain::swin_transformer/swin-large_8xb8_cub-384px.py'
REID = 'mmdet::reid/reid_r50_8xb32-6e_mot17train80_test-mot17val20.py'
SIDE = 64  # pixels


@pytest.fixture(autouse=True, scope='module')
def mmpretrain():
    return pytest.importorskip('mmpretrain', reason='mmpretrain is not installed: make install EXTRAS=cls')


def swapped(path, name='swin-nano', **more):
    return swap_backbone(read_config(path), name, verbose=False, **more)


def train_and_predict(cfg):
    model, data = build(cfg), pictures_and_classes(cfg, (SIDE, SIDE))
    losses, idle = train_one_step(cfg, model, data)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    assert not idle
    return model, predict(cfg, model, pictures_and_classes(cfg, (SIDE, SIDE)))


@pytest.mark.parametrize(('path', 'swin'), [(RESNET, 'swin-nano'), (CONVNEXT, 'swinv2-nano'), (SWIN, 'swin-nano')])
def test_a_classifier_trains_and_predicts(path, swin):
    cfg = swapped(path, swin)
    model, samples = train_and_predict(cfg)
    assert type(model.backbone) is (SwinV2Backbone if 'v2' in swin else SwinBackbone)
    assert all(sample.pred_score.shape == (1000,) for sample in samples)
    assert all(sample.pred_score.sum().item() == pytest.approx(1, abs=1e-3) for sample in samples)


def test_what_depends_on_the_backbone_follows():
    cfg = swapped(CONVNEXT, 'swin-b')  # ConvNeXt pools inside the backbone and emits a vector
    assert cfg.model.neck.type == 'mmpretrain.GlobalAveragePooling'
    assert cfg.model.head.in_channels == 1024
    backbone = dict(cfg.model.backbone)
    assert (backbone['arch'], backbone['out_indices'], backbone['small_map']) == ('base', (3,), 'shrink')
    assert backbone['drop_path_rate'] == 0.5
    assert cfg.data_preprocessor.to_rgb is True
    assert 'bgr_to_rgb' not in cfg.data_preprocessor
    assert cfg.optim_wrapper.optimizer.lr == 4e-3  # the config has AdamW already
    assert cfg.custom_hooks == read_config(CONVNEXT).custom_hooks


def test_the_rate_is_that_of_the_paper_for_the_images_of_a_step():
    cfg = swapped(RESNET, 'swin-t')
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 1e-3 * 256 / 1024, 0.05)
    assert cfg.optim_wrapper.paramwise_cfg.bias_decay_mult == 0
    assert swapped(RESNET, 'swin-t', recipe='keep').optim_wrapper == read_config(RESNET).optim_wrapper


def test_weights_are_loaded_where_the_config_loaded_weights():
    assert 'init_cfg' not in swapped(RESNET, 'swin-t').model.backbone  # a training on ImageNet needs no weights
    assert swapped(FINE_TUNED, 'swin-l').model.backbone.init_cfg.type == 'Pretrained'
    assert swapped(SWIN, 'swin-t').model.backbone.arch == 'tiny'  # mmpretrain's own Swin


def test_reidentification_of_mmdet_is_a_classifier_too():
    cfg = swapped(REID)
    assert cfg.model.head.in_channels == 256
    assert cfg.model.data_preprocessor.to_rgb is True
    cfg.model.neck.kernel_size = (2, 2)  # size of the last map for 64x64 pictures
    model, samples = train_and_predict(cfg)
    assert isinstance(model.backbone, SwinBackbone)
    assert all(sample.pred_feature.shape == (128,) for sample in samples)


@pytest.mark.parametrize(
    ('path', 'says'),
    [
        ('simmim/simmim_swin-base-w6_8xb256-amp-coslr-100e_in1k-192px.py', 'model.type takes one of .*got SimMIM'),
        ('hrnet/hrnet-w18_4xb32_in1k.py', 'model.neck: 2 necks in turn'),
        ('deit/deit-tiny-distilled_4xb256_in1k.py', 'model.backbone: it emits something other than feature maps'),
        ('conformer/conformer-tiny-p16_8xb128_in1k.py', 'model.'),
    ],
)
def test_refuses_by_the_key(path, says):
    cfg = read_config(f'mmpretrain::{path}')
    before = cfg.to_dict()
    with pytest.raises(ValueError, match=f'^{says}'):
        swap_backbone(cfg, 'swin-t', verbose=False)
    assert cfg.to_dict() == before


def test_simmim_trains_ours():
    from mmpretrain.structures import DataSample

    for swin in ('SimMIMSwinBackbone', 'SimMIMSwinV2Backbone'):
        cfg = read_config('configs/demo/simmim_swin-nano_shapes.py')
        cfg.model.backbone.type = swin
        cfg.model.data_preprocessor = cfg.data_preprocessor
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            model = MODELS.build(cfg.model)
        MessageHub.get_current_instance().update_info('iter', 0)
        samples = []
        for _ in range(2):
            sample = DataSample()
            sample.mask = torch.randint(0, 2, (24, 24))
            samples.append(sample)
        data = dict(inputs=torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8), data_samples=samples)
        losses = model(**model.data_preprocessor(data, True), mode='loss')
        losses['loss'].backward()
        assert model.backbone.mask_token.grad.abs().sum() > 0
