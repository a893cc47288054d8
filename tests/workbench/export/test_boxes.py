"""Compare functions rewritten for graphs with the toolboxes, without an export."""

import pytest
import torch
from mmengine.config import Config, ConfigDict

from swin_backbone.workbench.export.graph import ExportError
from swin_backbone.workbench.export.heads import boxes, layers
from swin_backbone.workbench.export.heads.operators import NEVER


@pytest.mark.parametrize(
    ('nms', 'most'),
    [
        (dict(type='nms', iou_threshold=0.5), 400),
        (dict(type='nms', iou_threshold=0.5, class_agnostic=True), None),
    ],
)
def test_the_best_boxes_of_each_image(nms, most):
    from mmcv.ops import batched_nms

    corners = torch.rand(2, 300, 2) * 60
    placed = torch.cat([corners, corners + torch.rand(2, 300, 2) * 30 + 1], 2)
    scores, group = torch.rand(2, 300), torch.randint(0, 3, (2, 300))
    clear_scores = torch.where(scores > 0.3, scores, NEVER)
    got, _, _, index = boxes.suppress(placed, clear_scores, group, Config(nms), most)
    for image in range(2):
        clear = scores[image] > 0.3
        expected, kept = batched_nms(placed[image][clear], scores[image][clear], group[image][clear], Config(nms))
        expected, kept = expected[:most], kept[:most]
        there = got[image] > NEVER
        assert there.sum() == len(expected)
        torch.testing.assert_close(got[image][there], expected[:, 4])
        assert (index[image][there] == clear.nonzero()[:, 0][kept]).all()


def test_soft_nms_is_refused():
    with pytest.raises(ExportError, match=r"nms\.type='soft_nms' .*cannot be exported whole"):
        boxes.require_nms(Config(dict(type='soft_nms', iou_threshold=0.5)))


def test_nms_given_as_a_function():
    from mmcv.ops import nms

    boxes.require_nms(ConfigDict(type=nms, iou_threshold=0.5))


@pytest.mark.parametrize(
    ('kernel', 'settings'),
    [(3, dict(padding=1, deform_groups=2)), ((3, 1), dict(padding=(1, 0), stride=2, groups=2)), (1, {})],
)
def test_deformable_convolutions_are_mmcvs(kernel, settings):
    from mmcv.ops import DeformConv2d, ModulatedDeformConv2dPack

    x = torch.randn(2, 4, 9, 13)
    for layer in (DeformConv2d(4, 6, kernel, **settings), ModulatedDeformConv2dPack(4, 6, kernel, **settings)):
        places = layer.deform_groups * layer.weight[0, 0].numel()
        size = ((9 - 1) // 2 + 1, (13 - 1) // 2 + 1) if settings.get('stride') else (9, 13)
        if hasattr(layer, 'conv_offset'):
            torch.nn.init.normal_(layer.conv_offset.weight)
        given = (x,) if hasattr(layer, 'conv_offset') else (x, torch.randn(2, 2 * places, *size) * 3)
        (ours,) = layers.copy_for_graph(torch.nn.Sequential(layer))
        assert ours.forward.func is layers.graph_deformable_convolution
        torch.testing.assert_close(ours(*given), layer(*given), atol=1e-5, rtol=1e-5)
