"""SwinMLPBackbone: published sizes, and formats of weights."""

import pytest
import torch
from helpers.checkpoints.origins import official
from helpers.models.small_models import randomised
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone, load_checkpoint
from swin_backbone.checkpoints import CheckpointError


def nano(**arguments):
    torch.manual_seed(0)
    return randomised(kind=SwinMLPBackbone, **{'window_size': 4, 'drop_path_rate': 0.0, **arguments})


def test_the_published_sizes_have_the_published_parameters():
    """The README of microsoft/Swin-Transformer gives 20, 21, 23 and 61 M with a head of 1000 classes."""
    published = {'tiny': (8, 20), 'tiny-c12': (8, 21), 'tiny-c6': (8, 23), 'base': (7, 61)}
    for arch, (window, millions) in published.items():
        with torch.device('meta'):
            backbone = SwinMLPBackbone(arch=arch, window_size=window, out_indices=(3,))
        classifier = 1001 * backbone.num_features[-1]
        assert round((sum(p.numel() for p in backbone.parameters()) + classifier) / 1e6) == millions


def test_weights_start_as_the_official_ones():
    backbone = nano()
    backbone.init_weights()
    mixing = backbone.stages[3].blocks[0].spatial_mlp
    assert 0.015 < mixing.weight.std() < 0.021  # truncated at 2, not at 2 deviations
    assert not mixing.bias.any()


def test_official_weights_load(tmp_path):
    source = nano()
    torch.save(official(source.state_dict()), tmp_path / 'official.pth')
    backbone = nano()
    for parameter in backbone.parameters():
        nn.init.zeros_(parameter)
    report = load_checkpoint(backbone, tmp_path / 'official.pth')
    assert report.origin == 'microsoft/Swin-Transformer, Swin-MLP'
    assert not report.warnings
    assert report.missing == [f'norm{i}.{leaf}' for i in range(4) for leaf in ('weight', 'bias')]
    for key, value in source.state_dict().items():
        assert key in report.missing or torch.equal(backbone.state_dict()[key], value)


@pytest.mark.parametrize(
    ('source', 'target', 'message'),
    [
        (nano, lambda: nano(window_size=8), r'spatial_mlp\.weight has shape \(32, 16, 1\), .*cannot be resized'),
        (
            nano,
            lambda: nano(num_heads=(1, 2, 4, 8)),
            r'heads \(2, 4, 8, 16\); the backbone has .* heads \(1, 2, 4, 8\)',
        ),
        (nano, lambda: SwinBackbone(arch='nano'), 'a Swin-MLP, whose weights fit no Swin V1'),
        (lambda: SwinBackbone(arch='nano'), nano, 'a Swin V1, whose weights fit no Swin-MLP'),
    ],
)
def test_weights_of_another_window_or_family_are_an_error(tmp_path, source, target, message):
    torch.save(source().state_dict(), tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(target(), tmp_path / 'weights.pth')
