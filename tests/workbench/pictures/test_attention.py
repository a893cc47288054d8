"""Attention maps have the weights of the reference, in the right places."""

import pytest
import torch
from helpers import reference
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.workbench.pictures.attention import attention_maps, receptive_fields

SETTINGS = [
    dict(),
    dict(mask_padding=True),
    dict(small_map='shrink'),
    dict(window_size=(3, 5)),
    dict(with_cp=True),
]
SMALL = dict(embed_dims=16, depths=(2, 3), num_heads=(2, 4), strides=(4, 2), out_indices=(0, 1), window_size=4)
KINDS = [SwinBackbone, SwinV2Backbone]


def build(kind, **arguments):
    if kind is SwinV2Backbone and 'window_size' in arguments:
        arguments['window_size'] = [arguments['window_size']] * 2
    backbone = kind(**{**SMALL, **arguments})
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    return backbone


class Softmaxes(TorchDispatchMode):
    """The output of each softmax."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._softmax.default:
            self.seen.append(result)
        return result


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('arguments', SETTINGS, ids=str)
def test_weights_are_the_reference_s(kind, arguments):
    backbone, images = build(kind, **arguments).eval(), torch.randn(2, 3, 43, 54)
    maps = attention_maps(backbone, images)
    with torch.no_grad(), Softmaxes() as literal:
        reference.maps(backbone, images)
    assert len(literal.seen) == len(maps)
    assert [(a.stage, a.block) for a in maps] == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    for attention, weights_LhNN in zip(maps, literal.seen):
        # Rows of masked padding have no meaning.
        rows = attention.token_at_LN >= 0 if arguments.get('mask_padding') else slice(None)
        shown, true = attention.weights_LhNN.transpose(1, 2)[rows], weights_LhNN.transpose(1, 2)[rows]
        assert torch.allclose(shown, true, rtol=0, atol=1e-6)


@pytest.mark.parametrize('kind', KINDS)
def test_every_token_stands_once_and_looks_inside_its_window(kind):
    backbone = build(kind, mask_padding=True)
    for attention in attention_maps(backbone, torch.randn(2, 3, 43, 54)):
        (H, W), (Wh, Ww) = attention.size, attention.window_size
        tokens = attention.token_at_LN[attention.token_at_LN >= 0]
        assert tokens.sort().values.tolist() == list(range(2 * H * W))
        for y, x in ((0, 0), (H - 1, W - 1), (H // 2, W // 3)):
            map_hHW = attention.of_token(y, x, image=1)
            assert map_hHW.shape == (len(map_hHW), H, W)
            torch.testing.assert_close(map_hHW.sum((1, 2)), torch.ones(len(map_hHW)))  # none goes to padding
            rows, columns = map_hHW.sum(0).nonzero(as_tuple=True)
            assert rows.max() - rows.min() < Wh
            assert columns.max() - columns.min() < Ww


def test_the_model_is_left_as_it_was():
    backbone = build(SwinBackbone, frozen_stages=1, drop_path_rate=0.5, attn_drop_rate=0.5).train()
    modes = [module.training for module in backbone.modules()]
    maps = attention_maps(nn.Sequential(backbone), torch.randn(1, 3, 32, 32))
    assert not any(attention.weights_LhNN.requires_grad for attention in maps)
    assert [module.training for module in backbone.modules()] == modes
    assert not any(module._forward_pre_hooks for module in backbone.modules())


def test_shift_lets_a_token_see_beyond_its_window():
    backbone, images = build(SwinBackbone, mask_padding=True), torch.randn(1, 3, 64, 64)
    seen = {}
    for shift in (True, False):
        maps = [a for a in attention_maps(backbone, images, shift=shift) if a.stage == 1]
        assert any(any(a.shift) for a in maps) == shift
        fields = receptive_fields(maps, 5, 5)
        assert [float(one.sum()) for one in fields] == pytest.approx([1, 1])
        torch.testing.assert_close(fields[0], 0.5 * maps[0].of_token(5, 5).mean(0) + 0.5 * one_token(5, 5, 16))
        seen[shift] = [int((one > 0).sum()) for one in fields]
    assert seen[False] == [16, 16]  # a window of 4x4 is never left
    assert seen[True] == [16, 64]  # the shifted window meets four windows


def one_token(y, x, side):
    map_HW = torch.zeros(side, side)
    map_HW[y, x] = 1
    return map_HW


def test_what_is_wrong_is_said():
    backbone = build(SwinBackbone)
    maps = attention_maps(backbone, torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match='row 8, column 0 of image 0: 1 images have 8x8'):
        maps[0].of_token(8, 0)
    with pytest.raises(ValueError, match='of one stage'):
        receptive_fields(maps, 0, 0)
    with pytest.raises(ValueError, match='Linear with 0'):
        attention_maps(nn.Linear(1, 1), torch.randn(1, 3, 32, 32))
    backbone.stages[1].blocks[0] = nn.Identity()
    with pytest.raises(ValueError, match=r'stages\.1\.blocks\.0 has no attention of this package'):
        attention_maps(backbone, torch.randn(1, 3, 32, 32))
