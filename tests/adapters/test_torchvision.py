"""Run the backbones in detectors of the real torchvision."""

import pytest
import torch
from helpers.adapters.frameworks import (
    assert_compiled,
    give_torchvision_operators,
    require,
    train_a_step,
)

from swin_backbone import SwinV2Backbone

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 75 * 101).view(2, 3, 75, 101).sin()
TARGETS = [
    dict(boxes=torch.tensor([[4.0, 4, 60, 50]]), labels=torch.tensor([1]), masks=torch.ones(1, 75, 101)) for _ in X
]


@pytest.fixture
def torchvision(monkeypatch):
    module = require('torchvision')
    import torchvision.models.detection  # noqa: F401

    give_torchvision_operators(monkeypatch)
    return module


@pytest.fixture
def adapter(torchvision):
    import swin_backbone.adapters.torchvision

    return swin_backbone.adapters.torchvision


def small(adapter, **arguments):
    return adapter.backbone_with_fpn('nano', out_channels=16, drop_path_rate=0.0, **arguments)


def test_a_pyramid_and_retinanets_extra_levels(adapter):
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    assert {name: tuple(x.shape[1:]) for name, x in small(adapter).eval()(X).items()} == {
        '0': (16, 19, 26), '1': (16, 10, 13), '2': (16, 5, 7), '3': (16, 3, 4), 'pool': (16, 2, 2),
    }  # fmt: skip
    model = small(adapter, family=SwinV2Backbone, out_indices=(1, 2, 3), extra_blocks=LastLevelP6P7(16, 16))
    assert list(model(X)) == ['0', '1', '2', 'p6', 'p7']


@pytest.mark.parametrize('name', ['MaskRCNN', 'FasterRCNN', 'RetinaNet', 'FCOS'])
def test_detectors(torchvision, adapter, name):
    detection = torchvision.models.detection
    sizes, kind = dict(min_size=75, max_size=101), 'anchor_generator'
    if name in ('MaskRCNN', 'FasterRCNN'):
        sizes |= dict(box_detections_per_img=5, rpn_post_nms_top_n_train=50, rpn_post_nms_top_n_test=20)
        kind = 'rpn_anchor_generator'
    ratios = ((1.0,),) if name == 'FCOS' else ((0.5, 1.0, 2.0),)
    anchors = {kind: detection.rpn.AnchorGenerator(tuple((2 << k,) for k in range(3, 8)), ratios * 5)}
    cls = getattr(detection, name)
    backbone = adapter.backbone_with_fpn('nano', out_channels=32, drop_path_rate=0.0)
    model = cls(backbone, num_classes=3, **anchors, **sizes)
    targets = [{k: v for k, v in target.items() if k != 'masks' or name == 'MaskRCNN'} for target in TARGETS]
    assert train_a_step(model, lambda model: sum(model(list(X), targets).values())) > 0
    assert_compiled(lambda: model.eval()(list(X)), blocks=8)


def test_their_means_are_swins(torchvision, adapter):
    from swin_backbone.openmmlab.config_files import read_config

    data = read_config('configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py').model.data_preprocessor
    model = torchvision.models.detection.FasterRCNN(small(adapter), num_classes=2)
    assert [255 * m for m in model.transform.image_mean] == pytest.approx(data.mean)
    assert [255 * s for s in model.transform.image_std] == pytest.approx(data.std)
