"""The checks of kernels in use, on a CPU; one that finds something wrong says so."""

import pytest
import torch

from benchmarks.gpu import checks, kernels
from swin_backbone import SwinBackbone

pytest.importorskip('triton', reason='triton is not installed')

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
STAGE = kernels.Stage(16, 1, 5, 9)
SMALL = dict(embed_dims=16, depths=(1, 1), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1))


def change_last(function, by):
    """`function` with its last call's first result changed, for what compares calls."""
    results = []

    def changed(*arguments, **options):
        first, *others = function(*arguments, **options)
        results.append(first)
        return first if len(results) % 2 else by(first), *others

    return changed


def test_memory_that_was_used_makes_no_difference(monkeypatch):
    (row,) = checks.used_memory(STAGE, torch.bfloat16, DEVICE)
    assert row.values == {'good': True}
    monkeypatch.setattr(kernels, 'attend_in_windows', change_last(kernels.attend_in_windows, lambda x: x * torch.nan))
    (row,) = checks.used_memory(STAGE, torch.bfloat16, DEVICE)
    assert row.values == {'good': False}


def test_images_together_are_what_each_is_alone(monkeypatch):
    (row,) = checks.huge_maps(STAGE, torch.bfloat16, DEVICE)
    assert row.values == {'good': True, 'values': 2 * 5 * 9 * 48}
    monkeypatch.setattr(kernels, 'attend_in_windows', change_last(kernels.attend_in_windows, lambda x: x + 1))
    (row,) = checks.huge_maps(STAGE, torch.bfloat16, DEVICE)
    assert row.values['good'] is False


def test_huge_maps_have_more_values_than_int32_counts():
    C, _, H, W = checks.HUGE
    assert 2 * H * W * 3 * C > 2**31


@pytest.mark.parametrize('bias', [0.0, 0.1])
def test_precision_is_that_of_a_peer(bias):
    peer, model = (SwinBackbone(**SMALL) for _ in range(2))
    model.load_state_dict(peer.state_dict())
    with torch.no_grad():
        model.patch_embed.projection.weight.mul_(1 + bias)
        model.norm1.bias.add_(bias)
    (row,) = checks.precision('ours', model, peer, torch.randn(1, 3, 32, 40), torch.bfloat16)
    assert row.what == 'precision, ours'
    assert row.values['good'] == (not bias)
    assert row.values['maps:'].count('beside') == 2


def test_a_captured_forward_is_an_eager_one():
    (row,) = checks.captured(SwinBackbone(**SMALL).to(DEVICE), torch.randn(1, 3, 32, 40, device=DEVICE), torch.bfloat16)
    assert row.values == ({'good': True} if DEVICE.type == 'cuda' else {'left out:': 'only CUDA has graphs'})
