"""DINO and Co-DETR with the Swin-L of mmdet's configs, on the backbone of this package."""

import sys

import pytest
import torch
from helpers.adapters.frameworks import assert_compiled, original, train_a_step

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone, swap_backbone
from swin_backbone.openmmlab.config.files import read_config

pytest.importorskip('mmdet', reason='mmdet is not installed')
CONFIG = 'mmdet::dino/dino-5scale_swin-l_8xb2-36e_coco.py'
SMALL = dict(embed_dims=48, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16])  # 24 channels for each head
# The settings of projects/CO-DETR's co_dino_5scale_swin_l_16xb1_16e_o365tococo.py, without sizes and weights.
OF_CO_DETR = dict(
    pretrain_img_size=384, window_size=12, mlp_ratio=4, qkv_bias=True, qk_scale=None, drop_rate=0.0, attn_drop_rate=0.0,
    drop_path_rate=0.3, patch_norm=True, out_indices=(0, 1, 2, 3), with_cp=True, convert_weights=True,
)  # fmt: skip


# The smallest working numbers of channels, layers, queries and classes for DINO.
SMALL_BACKBONE = {
    **{f'model.backbone.{key}': value for key, value in SMALL.items()},
    'model.backbone.type': 'SwinBackbone',
    'model.backbone.init_cfg': None,
    'model.backbone.drop_path_rate': 0.0,
    'model.neck.in_channels': [48, 96, 192, 384],
}
SMALL_DINO = {
    **SMALL_BACKBONE,
    **{'model.num_queries': 12, 'model.encoder.num_layers': 1, 'model.decoder.num_layers': 2},
    **{'model.bbox_head.num_classes': 3, 'model.test_cfg.max_per_img': 9},
    'model.dn_cfg.group_cfg.num_dn_queries': 2,
}
SMALL_CO_DETR = {  # `with_cp` -1 turns fairscale off
    **SMALL_BACKBONE,
    **{'model.query_head.num_query': 12, 'model.query_head.num_classes': 3, 'model.test_cfg.0.max_per_img': 9},
    **{'model.roi_head.0.bbox_head.num_classes': 3, 'model.bbox_head.0.num_classes': 3},
    'model.query_head.dn_cfg.group_cfg.num_dn_queries': 2,
    'model.query_head.transformer.encoder.num_layers': 1,
    'model.query_head.transformer.encoder.with_cp': -1,
    'model.query_head.transformer.decoder.num_layers': 2,
}


@pytest.mark.slow
@pytest.mark.parametrize('name', [CONFIG, 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'])
def test_swin_l_by_name(name):
    cfg = swap_backbone(read_config(name), 'swin-l')
    assert cfg.model.backbone.type == 'SwinBackbone'
    assert cfg.model.neck.in_channels[-1] == 1536
    if name == CONFIG:  # a config with Swin-L keeps window and weights
        assert (cfg.model.backbone.window_size, cfg.model.backbone.with_cp) == (12, True)
        assert 'window12' in cfg.model.backbone.init_cfg.checkpoint


@pytest.fixture
def co_detr(monkeypatch):
    """Return a config of projects/CO-DETR in open-mmlab/mmdetection at aeb4647, ready to build."""
    folder = original('mmdetection')
    monkeypatch.setattr(sys, 'path', [*sys.path, str(folder)])  # after the installed mmdet
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, 'cuda', lambda tensor: tensor)  # the loss calls `cuda`
    return folder / 'projects' / 'CO-DETR' / 'configs' / 'codino' / 'co_dino_5scale_swin_l_16xb1_16e_o365tococo.py'


def test_dino_trains_for_a_step_and_detects():
    cfg = read_config(CONFIG)
    cfg.merge_from_dict(SMALL_DINO)
    trains_and_detects(cfg.model)


@pytest.mark.peer
@pytest.mark.parametrize('swap', [False, True])
def test_co_detr_trains_for_a_step_and_detects(co_detr, swap):
    """Select Swin-L by a line in the config, and by --backbone swin-l."""
    cfg = swap_backbone(read_config(co_detr), 'swin-l') if swap else read_config(co_detr)
    cfg.merge_from_dict(SMALL_CO_DETR)
    trains_and_detects(cfg.model)


def trains_and_detects(cfg):
    from mmdet.structures import DetDataSample
    from mmengine.registry import MODELS, init_default_scope
    from mmengine.structures import InstanceData

    init_default_scope('mmdet')
    model = MODELS.build(cfg)
    model.init_weights()  # without `init_weights`, `level_embed` is uninitialised memory
    assert type(model.backbone) is SwinBackbone
    assert model.backbone.with_cp
    assert model.backbone.window_size[0] == (12, 12)
    size = (96, 130)
    shapes = dict(img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size, scale_factor=(1, 1))
    sample = DetDataSample(metainfo=shapes)
    sample.gt_instances = InstanceData(bboxes=torch.tensor([[4.0, 4, 60, 50]]), labels=torch.tensor([1]))
    images = torch.rand(1, 3, *size)
    assert train_a_step(model, lambda model: model.parse_losses(model.loss(images, [sample]))[0]) > 0
    assert_compiled(lambda: model.eval().backbone(images), blocks=8)
    with torch.no_grad():
        assert len(model.eval().predict(images, [sample])[0].pred_instances)


@pytest.mark.parametrize('with_cp', [False, True])
def test_less_is_kept_for_backward_than_by_mmdets(with_cp):
    """Compare the memory of narrow backbones with the settings of Co-DETR."""
    from mmdet.models import SwinTransformer

    x = torch.rand(1, 3, 192, 256)
    arguments = {**OF_CO_DETR, **SMALL, 'with_cp': with_cp}
    ours, theirs = SwinBackbone(**arguments), SwinTransformer(**arguments)
    ours.load_state_dict(theirs.state_dict())
    kept = [bytes_kept(model, x, torch.float32) for model in (ours, theirs)]
    # With checkpointing, models keep block inputs. SwinBackbone also keeps a bias (heads, 144, 144) of a block.
    biases = sum(depth * heads for depth, heads in zip(SMALL['depths'], SMALL['num_heads'])) * 144 * 144 * 4
    assert kept[0] < (kept[1] + biases if with_cp else kept[1] / 2)
    with torch.no_grad():
        for one, other in zip(ours.eval()(x), (theirs.train(False), theirs)[1](x)):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
