"""Compare functions rewritten for graphs with the toolboxes, without an export."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

pytest.importorskip('mmdet', reason='mmdet is not installed')

from swin_backbone.export.heads import boxes, deformable, mask2former
from swin_backbone.export.heads.segmentor import AdaptiveAvgPool


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_adaptive_pooling(height, width, rows, columns):
    x = torch.randn(2, 3, height, width)
    torch.testing.assert_close(AdaptiveAvgPool((rows, columns))(x), F.adaptive_avg_pool2d(x, (rows, columns)))


def test_masks_are_pasted_as_mmdet_does():
    from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask

    masks = torch.rand(5, 28, 28)
    corners = torch.rand(5, 2) * 30 - 5
    placed = torch.cat([corners, corners + torch.rand(5, 2) * 40 + 0.5], 1)
    wanted, _ = _do_paste_mask(masks[:, None], placed, 37, 51, skip_empty=False)
    torch.testing.assert_close(boxes.paste(masks, placed, 37, 51), wanted, atol=1e-5, rtol=0)


def test_a_box_without_a_side_has_no_mask():
    assert not boxes.paste(torch.ones(1, 28, 28), torch.tensor([[3.0, 3, 3, 9]]), 12, 12).any()


@pytest.mark.parametrize('stds', [(1.0, 1.0, 1.0, 1.0), (0.1, 0.1, 0.2, 0.2)])
def test_boxes_are_decoded_as_mmdet_does(stds):
    from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder

    coder = DeltaXYWHBBoxCoder(target_stds=stds)
    corners = torch.rand(50, 2) * 80
    placed = torch.cat([corners, corners + torch.rand(50, 2) * 50], 1)
    deltas = torch.randn(50, 4) * 4
    wanted = coder.decode(placed, deltas, max_shape=(90, 110))
    torch.testing.assert_close(boxes.decode(coder, placed, deltas, torch.tensor([90, 110])), wanted)


def test_regions_come_from_the_levels_that_mmdet_takes():
    from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor

    extractor = SingleRoIExtractor(
        roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=0), out_channels=4, featmap_strides=[4, 8, 16, 32]
    )
    maps = [torch.randn(2, 4, 128 // step, 160 // step) for step in (1, 2, 4, 8)]
    corners = torch.rand(40, 2) * 100
    placed = torch.cat([corners, corners + 2 ** torch.linspace(3, 9.5, 40)[:, None]], 1)
    image = torch.arange(40) % 2
    wanted = extractor(maps, torch.cat([image[:, None].float(), placed], 1))
    assert set(extractor.map_roi_levels(torch.cat([image[:, None], placed], 1), 4).tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(boxes.Regions(extractor)(maps, placed, image), wanted)


@pytest.mark.parametrize(
    ('nms', 'most'),
    [
        (dict(type='nms', iou_threshold=0.5), 400),
        (dict(type='nms', iou_threshold=0.5, class_agnostic=True), None),
        (dict(type='soft_nms', iou_threshold=0.5), 60),
        (dict(type='soft_nms', iou_threshold=0.3, min_score=0.4), 250),
    ],
)
def test_the_best_boxes_of_each_image(nms, most):
    from mmcv.ops import batched_nms

    corners = torch.rand(2, 300, 2) * 60
    placed = torch.cat([corners, corners + torch.rand(2, 300, 2) * 30 + 1], 2)
    scores, group = torch.rand(2, 300), torch.randint(0, 3, (2, 300))
    got, index = boxes.suppress(placed, scores, group, Config(nms), 0.3, most)
    for image in range(2):
        clear = scores[image] > 0.3
        wanted, kept = batched_nms(placed[image][clear], scores[image][clear], group[image][clear], Config(nms))
        wanted, kept = wanted[:most], kept[:most]
        there = got[image] > boxes.NEVER
        assert there.sum() == len(wanted)
        torch.testing.assert_close(got[image][there], wanted[:, 4])
        assert (index[image][there] == clear.nonzero()[:, 0][kept]).all()


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
        (ours,) = deformable.replace_deformable(torch.nn.Sequential(layer))
        assert type(ours) is deformable.SampledConv
        torch.testing.assert_close(ours(*given), layer(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('sides', [2, 4])
def test_deformable_attention_is_mmcvs(sides):
    from mmcv.ops import MultiScaleDeformableAttention

    sizes = [(5, 7), (3, 4)]
    layer = MultiScaleDeformableAttention(16, num_heads=2, num_levels=2, num_points=3, batch_first=True, dropout=0)
    torch.nn.init.normal_(layer.sampling_offsets.weight)
    shapes = torch.tensor(sizes)
    given = dict(
        query_pos=torch.randn(2, 6, 16), value=torch.randn(2, 47, 16), reference_points=torch.rand(2, 6, 2, sides)
    )
    query = torch.randn(2, 6, 16)
    wanted = layer(query, **given, spatial_shapes=shapes, level_start_index=torch.tensor([0, 35]))
    (ours,) = deformable.replace_deformable(torch.nn.Sequential(layer))
    torch.testing.assert_close(ours(query, **given, spatial_shapes=sizes), wanted, atol=1e-5, rtol=1e-5)


def test_the_box_around_a_mask():
    masks = torch.zeros(3, 6, 8, dtype=torch.bool)
    masks[0, 2:4, 3] = masks[1, 5, 7] = masks[1, 0, 0] = True
    assert mask2former.around(masks).tolist() == [[3, 2, 4, 4], [0, 0, 8, 6], [0, 0, 0, 0]]
