"""DINO and Co-DETR with the Swin-L of mmdet's configs, on the backbone of this package."""

import sys

import pytest
import torch
from helpers.adapters.frameworks import assert_compiled, original, train_a_step

from swin_backbone import SwinBackbone, swap_backbone
from swin_backbone.openmmlab.config_files import read_config

CONFIG = 'mmdet::dino/dino-5scale_swin-l_8xb2-36e_coco.py'
# The smallest working numbers of channels, layers, queries and classes for DINO.
SMALL_BACKBONE = {
    **{'model.backbone.embed_dims': 48, 'model.backbone.depths': [2] * 4, 'model.backbone.num_heads': [2, 4, 8, 16]},
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
