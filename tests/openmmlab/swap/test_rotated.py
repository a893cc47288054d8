"""A Swin in detectors of mmrotate: it trains and predicts, or is refused."""

import pytest
import torch
from helpers.openmmlab.breadth import build, predict, train_one_step

from swin_backbone import swap_backbone
from swin_backbone.openmmlab.config_files import read_config

pytestmark = pytest.mark.toolboxes

PLACED = {
    'Rotated RetinaNet': 'rotated_retinanet/rotated-retinanet-rbox-le90_r50_fpn_1x_dota.py',
    'Oriented R-CNN': 'oriented_rcnn/oriented-rcnn-le90_r50_fpn_1x_dota.py',
    'RoI Transformer': 'roi_trans/roi-trans-le90_r50_fpn_1x_dota.py',
    'S2ANet': 's2anet/s2anet-le135_r50_fpn_1x_dota.py',
    'Rotated FCOS': 'rotated_fcos/rotated-fcos-hbox-le90_r50_fpn_1x_dota.py',  # the default loss needs CUDA
}
SIDE = 128  # pixels: anchors are large


@pytest.fixture(autouse=True, scope='module')
def mmrotate():
    return pytest.importorskip('mmrotate', reason='mmrotate is not installed: make install EXTRAS=rotate')


def pictures_and_truth(batch=2):
    """Return pictures with rotated boxes: centre, width, height, angle."""
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData
    from mmrotate.structures.bbox import RotatedBoxes

    samples = []
    for _ in range(batch):
        boxes = torch.cat([SIDE / 4 + torch.rand(3, 2) * SIDE / 2, 16 + torch.rand(3, 2) * 32, torch.rand(3, 1)], 1)
        shape = dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE), pad_shape=(SIDE, SIDE), scale_factor=(1.0, 1.0))
        sample = DetDataSample(metainfo=dict(shape, batch_input_shape=(SIDE, SIDE)))
        sample.gt_instances = InstanceData(bboxes=RotatedBoxes(boxes), labels=torch.randint(0, 15, (3,)))
        sample.ignored_instances = InstanceData(bboxes=RotatedBoxes(boxes[:0]))
        samples.append(sample)
    pictures = [torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8) for _ in range(batch)]
    return dict(inputs=pictures, data_samples=samples)


@pytest.mark.parametrize('family', PLACED)
def test_swaps_trains_and_predicts(family):
    cfg = swap_backbone(read_config(f'mmrotate::{PLACED[family]}'), 'swin-nano', verbose=False, init_cfg=None)
    model = build(cfg)
    losses, idle = train_one_step(cfg, model, pictures_and_truth())
    for value in losses.values():
        assert torch.isfinite(torch.as_tensor(value)).all(), losses
    assert not idle
    (sample,) = predict(cfg, model, pictures_and_truth(batch=1))
    assert sample.pred_instances.bboxes.shape[1] == 5


def test_skipped_maps_of_an_fpn_are_not_emitted():
    cfg = swap_backbone(read_config(f'mmrotate::{PLACED["Rotated FCOS"]}'), 'swin-t', verbose=False)
    assert cfg.model.backbone.out_indices == (1, 2, 3)
    assert cfg.model.neck.start_level == 0
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'


def test_its_own_swin_gets_another_type_and_nothing_else():
    path = 'mmrotate::roi_trans/roi-trans-le90_swin-tiny_fpn_1x_dota.py'
    before = read_config(path)
    after = swap_backbone(before, 'swin-t', verbose=False)
    assert after.model.backbone.type == 'SwinBackbone'
    assert dict(after.model.backbone, type='') == dict(before.model.backbone, type='')


def test_refuses_a_backbone_that_turns_with_the_image():
    cfg = read_config('mmrotate::redet/redet-le90_re50_refpn_1x_dota.py')
    with pytest.raises(ValueError, match=r'^model.backbone: cannot find out what .*ReResNet emits'):
        swap_backbone(cfg, 'swin-t', verbose=False)
