"""Figures: masks and regions against the reference, features, class activation, bias tables, curves."""

import json

import numpy as np
import pytest
import torch
from helpers import reference
from matplotlib.text import Text

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.positions import resize_relative_position_bias_table
from swin_backbone.workbench.pictures.attention import attention_maps, list_strides
from swin_backbone.workbench.pictures.bias import find_bias_tables
from swin_backbone.workbench.pictures.cam import class_activation_map, eigen_cam, grad_cam, reshape_transform
from swin_backbone.workbench.pictures.curves import curves_figure, read_log
from swin_backbone.workbench.pictures.heatmaps import (
    attention_figure,
    cam_figure,
    features_figure,
    find_principal_colours,
)
from swin_backbone.workbench.pictures.layout import PADDING, REGIONS, lay_out, map_size
from swin_backbone.workbench.pictures.save import save_figure
from swin_backbone.workbench.pictures.windows import (
    bias_figure,
    count_mask_bytes,
    make_mosaic,
    masks_figure,
    windows_figure,
)

SMALL = dict(embed_dims=16, depths=(2, 2), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1))
torch.manual_seed(0)  # a class activation map of some weights is zero everywhere
BACKBONES = [SwinBackbone(**SMALL, window_size=4).eval(), SwinV2Backbone(**SMALL, window_size=4).eval()]
LAYOUTS = [
    ((18, 25), (7, 7), True, False),
    ((18, 25), (7, 7), False, False),
    ((16, 23), (7, 5), True, True),
    ((18, 25), (7, 7), False, True),
    ((3, 30), (7, 7), True, True),
    ((14, 14), (7, 7), True, True),
    ((1, 1), (2, 2), True, False),
]


def mask_stack(layout):
    """The masks of all windows, row by row: (L, N, N), what implementations without kinds of windows keep."""
    return np.stack([kind.mask_NN for kind in layout.kinds])[layout.kind_RC.ravel()]


@pytest.mark.parametrize(('size', 'window', 'shifted', 'mask_padding'), LAYOUTS)
def test_masks_and_regions_are_the_reference_s(size, window, shifted, mask_padding):
    layout = lay_out(size, window, shifted, mask_padding)
    padded = layout.token_HW.shape
    regions_HW = reference._regions(size, padded, window, layout.shift, mask_padding)

    def in_windows(map_HW):
        map_BHWC = torch.as_tensor(map_HW)[None, :, :, None].contiguous()
        return reference.window_partition(map_BHWC, window)[..., 0].numpy()

    regions_LN, tokens_LN = in_windows(regions_HW), in_windows(layout.token_HW)
    together_LNN = regions_LN[:, :, None] == regions_LN[:, None]
    # Pairs of masked padding have no effect.
    matters_LNN = (tokens_LN[:, :, None] != PADDING) | (tokens_LN[:, None] != PADDING) | (not mask_padding)
    assert np.array_equal(mask_stack(layout)[matters_LNN], together_LNN[matters_LNN])
    drawn_LN = in_windows(layout.region_HW)
    assert np.array_equal((drawn_LN[:, :, None] == drawn_LN[:, None])[matters_LNN], together_LNN[matters_LNN])

    tokens = np.full(padded, PADDING)
    tokens[: size[0], : size[1]] = np.arange(size[0] * size[1]).reshape(size)
    assert np.array_equal(layout.roll_back(layout.token_HW), tokens)
    assert (in_windows(layout.window_HW) == np.arange(len(tokens_LN))[:, None]).all()


@pytest.mark.parametrize(('size', 'window', 'shifted', 'mask_padding'), LAYOUTS)
def test_what_is_drawn_is_the_layout(size, window, shifted, mask_padding):
    layout = lay_out(size, window, shifted, mask_padding)
    figure = masks_figure(layout)
    drawn = [axis.get_images()[0].get_array() for axis in figure.axes[: len(layout.kinds) + 1]]
    for kind, mask_NN in zip(layout.kinds, drawn):
        assert np.array_equal(mask_NN, kind.mask_NN)
    rows, columns = layout.kind_RC.shape
    N = window[0] * window[1]
    stack_LNN = drawn[-1].reshape(rows, N, columns, N).swapaxes(1, 2).reshape(-1, N, N)
    assert np.array_equal(stack_LNN, mask_stack(layout))
    drawn = windows_figure(layout).axes[0].get_images()[0].get_array()
    assert drawn.shape == (*layout.token_HW.shape, 3)
    present = {REGIONS[i] for i in np.unique(layout.region_HW)} if shifted else {'windows 1', 'windows 2'}
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) == min(len(present), layout.window_HW.max() + 1 + shifted * 9)


def test_names_and_bytes_of_the_kinds():
    layout = lay_out((200, 336), (7, 7), True)
    assert [kind.name for kind in layout.kinds] == ['interior', 'right edge', 'bottom edge', 'corner']
    assert [int((layout.kind_RC == i).sum()) for i in range(4)] == [28 * 47, 28, 47, 1]
    assert count_mask_bytes(layout) == (29 * 48 * 49 * 49 * 4, 3 * 49 * 49)
    assert mask_stack(layout).size * 4 == count_mask_bytes(layout)[0]
    assert max(make_mosaic(layout).shape) <= 2400
    names = {kind.name for kind in lay_out((15, 15), (7, 7), True, True).kinds}
    assert {
        'next to right edge',
        'right edge',
        'next to bottom edge',
        'corner',
        'corner (one up and one left)',
    } <= names


def test_sizes():
    assert map_size((800, 1333), 1) == (200, 334)
    assert map_size((800, 1333), 4) == (25, 42)


def titles(figure):
    return ' | '.join(axis.get_title() for axis in figure.axes)


@pytest.mark.parametrize('backbone', BACKBONES, ids=['v1', 'v2'])
def test_attention_and_features_are_drawn(tmp_path, backbone):
    picture, images = np.zeros((60, 80, 3), np.uint8), torch.randn(1, 3, 64, 96)
    assert list_strides(backbone) == [4, 8]
    shifted, plain = (attention_maps(backbone, images, shift=shift) for shift in (True, False))
    figure = attention_figure(picture, shifted, plain, (21, 33), list_strides(backbone), stage=2, block=2, head=3)
    assert 'head 3' in titles(figure)
    assert 'with shift, after 2 blocks' in titles(figure)
    assert 'without shift, after 2 blocks\n16 of 96 tokens' in titles(figure)
    save_figure(figure, tmp_path / 'attention.png')
    assert (tmp_path / 'attention.png').read_bytes().startswith(b'\x89PNG')
    with pytest.raises(ValueError, match='stage must be from 1 to 2, got 3'):
        attention_figure(picture, shifted, plain, (21, 33), list_strides(backbone), stage=3)

    maps = [(f'stage {i}', one[0]) for i, one in enumerate(backbone.eval()(images), 1)]
    figure = features_figure(picture, maps, list_strides(backbone))
    assert 'stage 2: 32 channels, 8x12' in titles(figure)
    assert np.array_equal(figure.axes[2].get_images()[0].get_array(), find_principal_colours(maps[1][1]))
    save_figure(figure, tmp_path / 'features.html')
    html = (tmp_path / 'features.html').read_text()
    assert '<svg' in html
    assert 'src=' not in html


def test_principal_colours_find_what_varies():
    map_CHW = torch.zeros(5, 6, 8)
    map_CHW[3, :, :4], map_CHW[1, :3] = 10, 4  # two directions, the first the stronger
    colours = find_principal_colours(map_CHW)
    assert {tuple(one) for one in colours[..., :2].reshape(-1, 2).round(3).tolist()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len(np.unique(colours[:, :4, 0].round(6))) == 1


@pytest.mark.parametrize('backbone', BACKBONES, ids=['v1', 'v2'])
@pytest.mark.parametrize('method', ['grad', 'eigen'])
def test_class_activation_is_that_of_the_formulas(backbone, method):
    images = torch.randn(1, 3, 40, 48)

    def score():
        return backbone(images)[-1][:, 5].square().sum()

    # The score depends on the emitted map of stage 2, and on the first only through what the second takes.
    for stage, size, place in (
        (1, (10, 12), backbone.stages[0].blocks[-1] if method == 'grad' else backbone.norm0),
        (2, (5, 6), backbone.norm1),
    ):
        map_BHW = class_activation_map(backbone, score, stage, method)
        assert map_BHW.shape == (1, *size)
        assert map_BHW.min() >= 0
        assert map_BHW.max() == 1
        assert not backbone.stages[stage - 1].blocks[-1]._forward_hooks
        assert not place._forward_hooks
        activations = []
        handle = place.register_forward_hook(lambda _m, _a, out, outputs=activations: outputs.append(out))
        value = score()
        handle.remove()
        maps_BCHW = reshape_transform(activations[0].detach())
        if method == 'grad':
            gradient = torch.autograd.grad(value, activations[0])[0]
            expected = grad_cam(maps_BCHW, reshape_transform(gradient))
        else:
            expected = eigen_cam(maps_BCHW)
        torch.testing.assert_close(map_BHW, expected / expected.max())


def test_the_formulas_of_class_activation_on_numbers():
    activations, gradients = torch.tensor([[[[1.0, 2]], [[3, 1]]]]), torch.tensor([[[[2.0, 0]], [[-1, -1]]]])
    assert grad_cam(activations, gradients).tolist() == [[[0.0, 1.0]]]  # weights 1 and -1
    one_direction = torch.tensor([3.0, 4])[None, :, None, None] * torch.tensor([[[[0.0, 1, 5]]]])
    torch.testing.assert_close(eigen_cam(one_direction), torch.tensor([[[0.0, 0, 15]]]))  # 5 times 5 - 2


@pytest.mark.parametrize('frozen', [0, 2])
def test_frozen_backbones_have_a_class_activation_too(frozen):
    backbone = SwinBackbone(**SMALL, frozen_stages=frozen)
    images = torch.randn(1, 3, 32, 32)
    assert class_activation_map(backbone, lambda: backbone(images)[1][:, 5].square().sum(), 2).max() == 1


def test_what_cannot_be_explained():
    backbone, images = BACKBONES[0], torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match='stage must be from 1 to 2, got 3'):
        class_activation_map(backbone, lambda: backbone(images)[0].sum(), 3)
    with pytest.raises(ValueError, match="no gradient at stage 2; method 'eigen' needs none"):
        class_activation_map(backbone, lambda: backbone(images)[0].sum(), 2)  # of stage 1


def test_bias_tables_of_both_versions_before_and_after():
    (trained_Rh, _), (resized_Rh, _) = find_bias_tables(BACKBONES[0].state_dict(), 2, 1, new_window=(6, 6))
    own = BACKBONES[0].stages[1].blocks[0].attn.w_msa
    assert torch.equal(trained_Rh, own.relative_position_bias_table)
    assert torch.equal(resized_Rh, resize_relative_position_bias_table(trained_Rh, (4, 4), (6, 6)))
    with pytest.raises(ValueError, match='does not name the window of its training'):
        find_bias_tables(dict(BACKBONES[1].state_dict()), 2, 1)  # without the metadata, which has the windows
    tables = find_bias_tables(BACKBONES[1].state_dict(), 2, 1, window_size=(4, 4))
    assert [window for _, window in tables] == [(4, 4), (8, 8)]
    own = BACKBONES[1].stages[1].blocks[0].attn.w_msa
    for table_Rh, (Wh, Ww) in tables:
        own.pretrained_window = (4, 4)
        bias_hNN = own.position_bias((Wh, Ww))
        # The first and the last place of a window have the largest offset.
        torch.testing.assert_close(bias_hNN[:, -1, 0], table_Rh[-1])
        torch.testing.assert_close(bias_hNN[:, 0, 1], table_Rh[(Wh - 1) * (2 * Ww - 1) + Ww - 2])
    own.pretrained_window = None
    with pytest.raises(ValueError, match='has no block 3 in a stage 2'):
        find_bias_tables(BACKBONES[0].state_dict(), 2, 3)

    table_Rh = torch.arange(9.0)[:, None]  # of a window of 2x2, by the offset of the query from the key
    drawn = bias_figure([('window', table_Rh, (2, 2))], 'bias').subfigs[0].axes[0].get_images()[0].get_array()
    assert np.array_equal(drawn, np.arange(9.0)[::-1].reshape(3, 3))  # of the key from the query


def write_run(folder, records):
    (folder / 'vis_data').mkdir(parents=True)
    (folder / 'vis_data' / 'scalars.json').write_text('\n'.join(map(json.dumps, records)) + '\n{"lr": 0.')


def step(number, epoch=1, **more):
    return dict(
        lr=0.1 / number, loss=1.0 / number, loss_cls=0.5 / number, time=1, epoch=epoch, iter=number, step=number, **more
    )


def test_curves_of_a_training_that_was_killed_and_resumed(tmp_path):
    metric = {'coco/bbox_mAP': 0.25, 'coco/bbox_mAP_l': -1.0, 'time': 1, 'step': 1}
    write_run(tmp_path / '20260101_000000', [step(10), step(20), metric, step(30, 2, stray=1)])
    write_run(tmp_path / '20260102_000000', [step(25, 2), step(35, 2), {**metric, 'coco/bbox_mAP': 0.5, 'step': 2}])
    log = read_log(tmp_path)
    assert [at for at, _ in log.losses['loss']] == [10, 20, 25, 35]
    assert set(log.losses) == {'loss', 'loss_cls'}
    assert log.rates == {'lr': [(at, 0.1 / at) for at in (10, 20, 25, 35)]}
    assert log.metrics == {'coco/bbox_mAP': [(1, 0.25), (2, 0.5)]}  # -1: there are no such objects
    assert log.by_epoch
    figure = curves_figure([log])
    lines = {line.get_label(): line.get_xydata().tolist() for axis in figure.axes for line in axis.get_lines()}
    assert lines['coco/bbox_mAP'] == [[1, 0.25], [2, 0.5]]
    assert lines['loss'][0] == [10, 0.1]
    assert figure.axes[2].get_xlabel() == 'epoch'

    write_run(tmp_path / '20260103_000000', [step(5)])  # not resumed, but started again
    assert [at for at, _ in read_log(tmp_path).losses['loss']] == [5]
    assert read_log(tmp_path).metrics == {}


def test_the_curves_of_a_log_have_an_order(tmp_path):
    """It was that of a set, another in each process, and two reports on the same files differed."""
    names = sorted(f'loss_{letter}' for letter in 'gbeacdf')
    write_run(tmp_path, [dict(step(1), **dict.fromkeys(names, 1.0))])
    assert list(read_log(tmp_path).losses) == ['loss', 'loss_a', 'loss_b', 'loss_c', 'loss_cls', *names[3:]]


def texts_cut_off(figure):
    """The texts beyond the edge of a figure."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    return [
        text.get_text()
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text()
        for box in [text.get_window_extent()]
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]


def test_no_title_is_cut_off():
    """On a portrait, and with the longest of titles."""
    picture = np.zeros((200, 40, 3), np.uint8)
    title = "EigenCAM at stage 4, of the features, which are the same for every prediction; shown beside the box 'car'"
    table = torch.randn(169, 2)
    figures = [
        cam_figure(picture, torch.zeros(50, 10), 4, title, [3, 4, 13, 24]),
        features_figure(picture, [('stage 1', torch.randn(4, 50, 10))], [4]),
        masks_figure(lay_out((50, 10), (7, 7), True)),
        bias_figure([('trained: window 7x7', table, (7, 7))], f'Bias of {title}'),
    ]
    assert [texts_cut_off(figure) for figure in figures] == [[]] * 4
    assert [patch.get_bbox().bounds for patch in figures[0].axes[1].patches] == [(3, 4, 10, 20)]
    assert figures[0].axes[1].get_images()[1].get_extent() == [-0.5, 39.5, 199.5, -0.5]
