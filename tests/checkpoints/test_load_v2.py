"""Load checkpoints of Swin V2. Report weights that do not fit."""

import pytest
import torch
from helpers.checkpoints.origins import position_index, torchvision_v2
from helpers.models.small_v2_models import nano, saved, with_random_weights

from swin_backbone import SwinBackbone, SwinV2Backbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError, read_checkpoint


def test_each_version_takes_its_own_and_names_the_other(tmp_path):
    v1, v2 = SwinBackbone(arch='nano'), nano()
    with pytest.raises(CheckpointError, match='it holds a Swin V1, whose weights fit no Swin V2'):
        load_checkpoint(v2, saved(v1, tmp_path / 'v1.pth'))
    with pytest.raises(CheckpointError, match='it holds a Swin V2, whose weights fit no Swin V1'):
        load_checkpoint(v1, saved(v2, tmp_path / 'v2.pth'))
    with pytest.raises(CheckpointError, match=r'width 32, .*; the backbone has width 96'):
        load_checkpoint(SwinV2Backbone(arch='tiny'), tmp_path / 'v2.pth')


def test_mmpretrains_classifier(tmp_path):
    """mmpretrain and this package use equal names. `norm3` is the classifier's norm."""
    model = with_random_weights(nano(out_indices=(3,)))
    state = {f'backbone.{key}': value for key, value in model.state_dict().items()}
    state |= {'head.fc.weight': torch.rand(10, 256), 'head.fc.bias': torch.rand(10)}
    state['backbone.stages.0.blocks.0.attn.w_msa.relative_coords_table'] = torch.rand(1, 15, 15, 2)
    torch.save({'state_dict': state}, tmp_path / 'mmpretrain.pth')
    backbone = nano()
    report = load_checkpoint(backbone, tmp_path / 'mmpretrain.pth')
    assert report.origin == "mmpretrain, Swin V2, prefix 'backbone.'"
    assert (backbone.norm3.weight == 1).all()
    assert all(torch.equal(v, backbone.state_dict()[k]) for k, v in model.state_dict().items() if k[:4] != 'norm')


def test_torchvision_there_and_back(tmp_path):
    """torchvision loads only files with its tables, which need the window."""
    source = with_random_weights(nano(window_size=6, pretrained_window_sizes=(8, 8, 8, 4)))
    torch.save(dict(source.state_dict()), tmp_path / 'no_sizes.pth')
    with pytest.raises(CheckpointError, match=r'the window of \S+logit_scale is no square, or unknown'):
        convert_checkpoint(tmp_path / 'no_sizes.pth', tmp_path / 'no.pth', 'torchvision')
    assert not (tmp_path / 'no.pth').exists()
    saved(source, tmp_path / 'v2.pth')
    convert_checkpoint(tmp_path / 'v2.pth', tmp_path / 'there.safetensors', 'torchvision')
    there = read_checkpoint(tmp_path / 'there.safetensors')
    expected = {key: v for key, v in torchvision_v2(source.state_dict()).items() if 'norm3' not in key}
    for key, value in expected.items():
        if key.endswith('qkv.bias'):
            value = torch.cat([x * (part != 1) for part, x in enumerate(value.chunk(3))])
        assert torch.equal(there[key], value), key
    tables = {key: table for key, table in there.items() if key not in expected and not key.startswith('norm')}
    assert {key.rpartition('.')[2] for key in tables} == {'relative_position_index', 'relative_coords_table'}
    assert torch.equal(there['features.1.0.attn.relative_position_index'], position_index(6).flatten())
    torch.testing.assert_close(there['features.7.1.attn.relative_coords_table'], official_tables(6, 4))
    convert_checkpoint(tmp_path / 'there.safetensors', tmp_path / 'back.pth', 'mmdet')
    back = read_checkpoint(tmp_path / 'back.pth')['state_dict']
    assert all(torch.equal(back[key], value) for key, value in source.state_dict().items())


def official_tables(window, pretrained):
    """Return the `relative_coords_table` of a stage in microsoft/Swin-Transformer."""
    offsets = torch.arange(1 - window, window, dtype=torch.float32) / (pretrained - 1) * 8
    logs = torch.sign(offsets) * torch.log2(offsets.abs() + 1) / 3
    return torch.stack(torch.meshgrid(logs, logs, indexing='ij'), dim=-1)[None]


@pytest.mark.parametrize(
    ('arguments', 'warns'),
    [
        (dict(window_size=(16, 16, 16, 8), pretrained_window_sizes=(12, 12, 12, 6)), False),
        (dict(window_size=24, pretrained_window_sizes=(12, 12, 12, 6)), False),
        (dict(window_size=(12, 12, 12, 6)), False),
        (dict(window_size=(16, 16, 16, 8)), True),
        (dict(window_size=24, pretrained_window_sizes=(12, 12, 12, 12)), True),
    ],
)
def test_a_bias_at_another_scale_is_a_warning(tmp_path, arguments, warns):
    """The coordinate tables of a file show a fine-tuning from window 12 to 16."""
    state = dict(nano().state_dict())  # without sizes
    for stage, (window, pretrained) in enumerate(((16, 12), (16, 12), (16, 12), (8, 6))):
        name = f'stages.{stage}.blocks.0.attn.w_msa.relative_coords_table'
        state[name] = official_tables(window, pretrained)
    torch.save(state, tmp_path / 'weights.pth')
    report = load_checkpoint(nano(**arguments), tmp_path / 'weights.pth')
    assert any('set pretrained_window_sizes' in warning for warning in report.warnings) == warns
    assert not report.missing
