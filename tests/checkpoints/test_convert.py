"""Convert between formats, in both directions."""

import errno
import os
import re

import pytest
import torch
from helpers.checkpoints.origins import ORIGINS, official, official_backbone
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, convert_checkpoint
from swin_backbone.checkpoints import FORMATS, CheckpointError, read_checkpoint


def flat(path):
    loaded = read_checkpoint(path)
    return loaded.get('model', loaded.get('state_dict', loaded))


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value, right[key]), key


@pytest.mark.parametrize('to', FORMATS)
def test_there_and_back_gives_the_same_bits(tmp_path, to):
    """Convert a detector's backbone with a classifier's norm and head, in mixed precision, by both kinds of files."""
    state = randomised(use_abs_pos_embed=True, pretrain_img_size=28).state_dict()
    source = official_backbone(state) | {key: v for key, v in official(state)['model'].items() if key not in state}
    source = {key: v for key, v in source.items() if not key.endswith(('_index', '_mask'))}
    source['layers.1.blocks.0.attn.qkv.weight'] = source['layers.1.blocks.0.attn.qkv.weight'].half()
    source['layers.1.downsample.reduction.weight'] = source['layers.1.downsample.reduction.weight'].double()
    torch.save({'model': source}, tmp_path / 'source.pth')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'there.pth', to)
    convert_checkpoint(tmp_path / 'there.pth', tmp_path / 'there.safetensors', to)
    convert_checkpoint(tmp_path / 'there.safetensors', tmp_path / 'back.pth', 'official')
    same(flat(tmp_path / 'back.pth'), source)
    assert names_in(tmp_path) == {'source.pth', 'there.pth', 'there.safetensors', 'back.pth'}


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
def test_one_stage_of_timm_keeps_its_head(tmp_path, kind):
    """Without a merging, the head's name tells timm's files."""
    state = randomised(kind=kind, depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,)).state_dict()
    source = {key.replace('norm0', 'norm'): value for key, value in official_backbone(state).items()}
    source = {key: value for key, value in source.items() if not key.endswith(('_index', '_mask'))}
    source |= {'head.fc.weight': torch.rand(5, 32), 'head.fc.bias': torch.rand(5)}
    torch.save(source, tmp_path / 'source.pth')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'ours.pth', 'mmdet')
    convert_checkpoint(tmp_path / 'ours.pth', tmp_path / 'back.pth', 'timm')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'same.pth', 'timm')
    same(flat(tmp_path / 'back.pth'), source)
    same(flat(tmp_path / 'same.pth'), source)
    assert {'norm.weight', 'head.weight'} <= flat(tmp_path / 'ours.pth').keys()


def test_a_missing_folder_is_made_and_one_that_cannot_be_is_said(tmp_path):
    torch.save(randomised(False).state_dict(), tmp_path / 'a.pth')
    convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'new' / 'folder' / 'b.pth', 'official')
    assert names_in(tmp_path / 'new' / 'folder') == {'b.pth'}
    with pytest.raises(CheckpointError, match=r'a\.pth/b\.pth cannot be written \((Not a directory|File exists)\)'):
        convert_checkpoint(tmp_path / 'a.pth', tmp_path / 'a.pth' / 'b.pth', 'official')


@pytest.mark.parametrize(
    ('to', 'origin'),
    [('official', 'official'), ('timm', 'timm'), ('torchvision', 'torchvision'), ('hf', 'hugging_face')],
)
def test_a_format_is_what_its_origin_writes(tmp_path, to, origin):
    """Compare names, order, shapes and values of a converted file with the origin's own file."""
    torch.manual_seed(1)
    state = randomised(False).state_dict()
    torch.manual_seed(2)
    torch.save(ORIGINS['official'][0](state), tmp_path / 'source.pth')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', to)
    torch.manual_seed(2)
    expected = ORIGINS[origin][0](state)
    tables = ('_mask',) if to == 'torchvision' else ('_index', '_mask')  # torchvision loads the index
    expected = {key: v for key, v in expected.get('model', expected).items() if not key.endswith(tables)}
    same(flat(tmp_path / 'target.pth'), expected)


def test_what_is_left_out_is_said(tmp_path):
    torch.save(ORIGINS['mmdet_detector'][0](randomised().state_dict()), tmp_path / 'source.pth')
    text = convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', 'timm')
    assert text == (
        f'{tmp_path}/source.pth (mmdet or mmseg) to {tmp_path}/target.pth (timm): 125 tensors; '
        'left out: 8 index tables and masks, 1 outside the backbone'
    )


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    def fsync(handle):
        raise OSError(errno.ENOSPC, 'No space left on device')

    torch.save({'conv1.weight': torch.zeros(1)}, tmp_path / 'no_swin.pth')
    torch.save(randomised(False).state_dict(), tmp_path / 'source.pth')
    target = tmp_path / 'target.safetensors'
    target.write_bytes(b'mine')
    monkeypatch.setattr(os, 'fsync', fsync)
    for source, to, message in (
        ('no_swin.pth', 'timm', 'no weight of a Swin Transformer'),
        ('source.pth', 'tf', f"to must be one of {', '.join(FORMATS)}, got 'tf'"),
        ('source.pth', 'timm', rf'{target} cannot be written \(No space left on device\)'),
    ):
        with pytest.raises(ValueError, match=message):
            convert_checkpoint(tmp_path / source, target, to, overwrite=True)
    assert target.read_bytes() == b'mine'
    assert names_in(tmp_path) == {'no_swin.pth', 'source.pth', target.name}


QKV, HEAD, V2_SCALE = 'layers.1.blocks.1.attn.qkv.bias', 'head.weight', 'stages.1.blocks.0.attn.w_msa.logit_scale'
STATES = {
    'V1': lambda: official(randomised(False, use_abs_pos_embed=True).state_dict())['model'],
    'V2': lambda: SwinV2Backbone(arch='nano', extra_norm_every_n_blocks=2).state_dict(),
    'MLP': lambda: SwinMLPBackbone(arch='nano').state_dict(),
}
KINDS = {'V1': FORMATS, 'V2': ('official', 'mmdet', 'timm'), 'MLP': ('official', 'mmdet')}


def saved(path, family, name, change):
    """Write a model with a change of the weights whose names begin with `name`. None removes the weights."""
    state = STATES[family]()
    for key in [key for key in state if key.startswith(name)]:
        value = state.pop(key)
        if change is not None:
            state[key] = change(value).clone()
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ('family', 'name', 'missing'),
    [
        ('V1', QKV, 'stages.1.blocks.1.attn.w_msa.qkv.bias'),
        ('V1', 'layers.2.downsample.norm.bias', 'stages.2.downsample.norm.bias'),
        ('V1', 'head.bias', 'head.bias'),
        ('V1', 'layers.3', r'stages\.3\.blocks\.0\.\S+, .* and \d+ more'),
        ('V2', V2_SCALE, V2_SCALE),
        ('MLP', 'stages.1.blocks.0.spatial_mlp.weight', 'stages.1.blocks.0.spatial_mlp.weight'),
    ],
)
def test_a_conversion_names_missing_weights(tmp_path, record_fault, family, name, missing):
    source = saved(tmp_path / 'source.pth', family, name, None)
    for to in KINDS[family]:
        report = convert_checkpoint(source, tmp_path / f'{to}.safetensors', to)
        assert re.fullmatch(missing, report.partition('; missing: ')[2])
        record_fault('damages')
    if family == 'V1':
        with pytest.raises(CheckpointError, match=r'config\.json needs complete weights; missing: '):
            convert_checkpoint(source, tmp_path / 'out', 'hf')


def with_nan(value):
    value = value.clone()
    value.view(-1)[0] = float('nan')
    return value


def first(value):
    return value.flatten()[0]


@pytest.mark.parametrize(
    ('family', 'name', 'change', 'message'),
    [
        ('V1', QKV, with_nan, r'1 of its \d+ weights are not finite .*qkv\.bias'),
        ('V1', HEAD, with_nan, 'not finite .*head.weight'),
        ('V1', QKV, first, r'qkv\.bias has shape \(\)'),
        ('V1', 'layers.0.downsample.reduction', lambda value: value[:, :-1], r'reduction.* \(64, 127\)'),
        ('V1', 'patch_embed.proj.weight', lambda value: value.flatten(1), r'projection\.weight has shape \(32, 48\)'),
        ('V2', 'patch_embed.projection.weight', lambda value: value[..., :2], r'projection\.\w+ has .* 4, 2\)'),
        ('V1', 'absolute_pos_embed', lambda value: value.flatten(1), r'absolute_pos_embed has shape \(1, \d+\)'),
        ('V1', 'layers.1.blocks.0.attn.relative', lambda value: torch.tensor(3), r'bias_table has shape \(\)'),
        ('V2', 'stages.1.blocks.0.attn.w_msa.qkv', lambda value: torch.tensor(1j), r'qkv\.\w+ has shape \(\)'),
        ('V1', 'layers.0.downsample.norm.weight', first, r'norm\.weight has shape \(\)'),
        ('V1', HEAD, lambda value: value[:-1], r'head\.weight has shape'),
        ('V2', V2_SCALE, first, r'logit_scale has shape \(\)'),
        ('V2', 'stages.1.downsample.reduction', lambda value: value[:, :-1], r'reduction.* \(64, 127\)'),
        ('MLP', 'stages.1.blocks.0.spatial_mlp.weight', lambda value: value[:-1], r'spatial_mlp\.\w+ has'),
    ],
)
def test_damaged_weights_are_an_error(tmp_path, record_fault, family, name, change, message):
    source = saved(tmp_path / 'source.pth', family, name, change)
    for to in KINDS[family]:
        with pytest.raises(CheckpointError, match=message) as error:
            convert_checkpoint(source, tmp_path / 'out.safetensors', to)
        assert str(source) in str(error.value)
        assert len(str(error.value).splitlines()) == 1
        assert names_in(tmp_path) == {'source.pth'}
        record_fault('damages')
