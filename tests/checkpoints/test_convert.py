"""Convert between formats, in both directions."""

import errno
import os

import pytest
import safetensors.torch
import torch
from helpers.checkpoints.origins import ORIGINS, official, official_backbone
from helpers.models.small_models import randomised

from swin_backbone import SwinMLPBackbone, SwinV2Backbone, convert_checkpoint
from swin_backbone.checkpoints import FORMATS, CheckpointError, read_checkpoint
from swin_backbone.outputs import RECORD


def flat(path):
    loaded = read_checkpoint(path)
    return loaded.get('model', loaded.get('state_dict', loaded))


def names_in(folder):
    return {path.name for path in folder.iterdir()} - {RECORD}


def same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value, right[key]), key


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
@pytest.mark.parametrize('to', FORMATS)
def test_there_and_back_gives_the_same_bits(tmp_path, to, suffix):
    """Convert a detector's backbone with a classifier's norm and head, in mixed precision."""
    state = randomised(use_abs_pos_embed=True, pretrain_img_size=28).state_dict()
    source = official_backbone(state) | {key: v for key, v in official(state)['model'].items() if key not in state}
    source = {key: v for key, v in source.items() if not key.endswith(('_index', '_mask'))}
    source['layers.1.blocks.0.attn.qkv.weight'] = source['layers.1.blocks.0.attn.qkv.weight'].half()
    source['layers.1.downsample.reduction.weight'] = source['layers.1.downsample.reduction.weight'].double()
    torch.save({'model': source}, tmp_path / 'source.pth')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / f'there.{suffix}', to)
    convert_checkpoint(tmp_path / f'there.{suffix}', tmp_path / f'back.{suffix}', 'official')
    same(flat(tmp_path / f'back.{suffix}'), source)
    assert names_in(tmp_path) == {'source.pth', f'there.{suffix}', f'back.{suffix}'}


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


@pytest.mark.parametrize('origin', ORIGINS)
def test_every_origin_gives_the_toolboxes_names(tmp_path, origin):
    save, _, has_output_norms = ORIGINS[origin]
    state = randomised().state_dict()
    torch.save(save(state), tmp_path / 'source.pth')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', 'mmdet')
    written = read_checkpoint(tmp_path / 'target.pth')['state_dict']
    expected = {key: v for key, v in state.items() if has_output_norms or not key.startswith('norm')}
    if origin in ('mmdet_detector', 'official_detector', 'data_parallel', 'averaged', 'teacher_and_student'):
        assert written.pop('neck.fpn.weight').tolist() == [1, 1]  # a whole detector stays whole
        assert set(written.pop('steps', torch.zeros(1)).shape) <= {1}
        expected = {f'backbone.{key}': value for key, value in expected.items()}
    same({key: value for key, value in written.items() if not key.startswith(('norm.', 'head.'))}, expected)


def test_what_is_left_out_is_said(tmp_path):
    torch.save(ORIGINS['mmdet_detector'][0](randomised().state_dict()), tmp_path / 'source.pth')
    said = convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', 'timm')
    assert said == (
        f'{tmp_path}/source.pth (mmdet or mmseg) to {tmp_path}/target.pth (timm): 125 tensors; '
        'left out: 8 index tables and masks, 1 outside the backbone'
    )


def test_a_failure_leaves_what_was_there(tmp_path):
    (tmp_path / 'target.pth').write_bytes(b'mine')
    torch.save({'conv1.weight': torch.zeros(1)}, tmp_path / 'source.pth')
    with pytest.raises(CheckpointError, match='no weight of a Swin Transformer'):
        convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', 'timm', overwrite=True)
    with pytest.raises(ValueError, match=f"to must be one of {', '.join(FORMATS)}, got 'tf'"):
        convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'target.pth', 'tf', overwrite=True)
    assert (tmp_path / 'target.pth').read_bytes() == b'mine'
    assert names_in(tmp_path) == {'source.pth', 'target.pth'}


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_a_disk_that_takes_no_more_leaves_what_was_there(tmp_path, monkeypatch, suffix):
    def fsync(handle):
        raise OSError(errno.ENOSPC, 'No space left on device')

    target = tmp_path / f'target.{suffix}'
    target.write_bytes(b'mine')
    torch.save(randomised(False).state_dict(), tmp_path / 'source.pth')
    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(CheckpointError, match=rf'{target} cannot be written \(No space left on device\)'):
        convert_checkpoint(tmp_path / 'source.pth', target, 'timm', overwrite=True)
    assert target.read_bytes() == b'mine'
    assert names_in(tmp_path) == {'source.pth', target.name}


QKV, HEAD = 'layers.1.blocks.1.attn.qkv.bias', 'head.weight'


def damaged(folder, changes, state=None, suffix='pth'):
    """Write a classifier's file with `changes` to the weights. None removes a weight."""
    state = dict(state or official(randomised(False).state_dict())['model'])
    for name, change in changes.items():
        value = state.pop(name)
        if change is not None:
            state[name] = change(value).clone()
    path = folder / f'source.{suffix}'
    write = torch.save if suffix == 'pth' else safetensors.torch.save_file
    write(state, path)
    return path


def with_nan(value):
    value = value.clone()
    value.view(-1)[0] = float('nan')
    return value


def first(value):
    return value.flatten()[0]


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
@pytest.mark.parametrize('to', FORMATS)
def test_a_conversion_names_missing_weights(tmp_path, record_fault, to, suffix):
    changes = dict.fromkeys(['layers.0.blocks.0.norm1.weight', QKV, 'head.bias', 'layers.2.downsample.norm.bias'])
    report = convert_checkpoint(damaged(tmp_path, changes, suffix=suffix), tmp_path / 'out.safetensors', to)
    assert report.endswith(
        'missing: stages.0.blocks.0.norm1.weight, stages.1.blocks.1.attn.w_msa.qkv.bias, '
        'stages.2.downsample.norm.bias and 1 more'
    )
    record_fault('damages')


DAMAGES = [
    (QKV, with_nan, r'1 of its \d+ weights are not finite .*qkv\.bias'),
    (HEAD, with_nan, 'not finite .*head.weight'),
    (QKV, first, r'qkv\.bias has shape \(\)'),
    ('layers.0.downsample.reduction.weight', lambda value: value[:, :-1], r'reduction\.weight has shape \(64, 127\)'),
    ('layers.0.downsample.norm.weight', first, r'norm\.weight has shape \(\)'),
    ('layers.1.blocks.0.attn.relative_position_bias_table', lambda value: value[:-1], 'table has shape .168'),
    ('layers.1.blocks.0.attn.relative_position_bias_table', lambda value: value[:, 1:], 'table has shape .169, 3'),
    ('layers.0.blocks.0.norm1.weight', first, r'norm1\.weight has shape \(\)'),
    (HEAD, lambda value: value[:-1], r'head\.\w+ has shape'),
    (HEAD, first, r'head\.weight has shape \(\)'),
]


def assert_refused(path, to, message):
    with pytest.raises(CheckpointError, match=message) as error:
        convert_checkpoint(path, path.with_name('out.safetensors'), to)
    assert str(path) in str(error.value)
    assert not path.with_name('out.safetensors').exists()


@pytest.mark.parametrize(('name', 'change', 'message'), DAMAGES)
def test_damaged_weights_are_an_error(tmp_path, record_fault, name, change, message):
    for to in FORMATS:
        suffix = 'pth' if to in ('mmdet', 'official', 'torchvision') else 'safetensors'
        assert_refused(damaged(tmp_path, {name: change}, suffix=suffix), to, message)
        record_fault('damages')


@pytest.mark.parametrize(
    ('family', 'name', 'change', 'message'),
    [
        (SwinV2Backbone, 'blocks.0.attn.w_msa.logit_scale', first, r'logit_scale has shape \(\)'),
        (SwinV2Backbone, 'downsample.reduction.weight', lambda value: value[:, :-1], r'reduction.* \(64, 127\)'),
        (SwinV2Backbone, 'blocks.0.attn.w_msa.q_bias', with_nan, 'not finite .*q_bias'),
        (SwinV2Backbone, 'blocks.0.attn.w_msa.cpb_mlp.2.weight', lambda value: value[:1], r'cpb_mlp\.2\.weight has'),
        (SwinMLPBackbone, 'blocks.0.spatial_mlp.weight', lambda value: value[:-1], r'spatial_mlp\.\w+ has'),
        (SwinMLPBackbone, 'blocks.0.spatial_mlp.bias', first, r'spatial_mlp\.bias has'),
    ],
)
def test_damaged_weights_of_other_families(tmp_path, record_fault, family, name, change, message):
    state = family(arch='nano').state_dict()
    for to in ('official', 'mmdet'):
        assert_refused(damaged(tmp_path, {f'stages.1.{name}': change}, state), to, message)
        report = convert_checkpoint(damaged(tmp_path, {f'stages.1.{name}': None}, state), tmp_path / 'part.pth', to)
        assert report.endswith(f'missing: stages.1.{name}')
    record_fault('damages', 4)


@pytest.mark.parametrize('stage', [1, 3])
def test_a_missing_stage_is_named(tmp_path, record_fault, stage):
    names = [key for key in official(randomised(False).state_dict())['model'] if key.startswith(f'layers.{stage}.')]
    report = convert_checkpoint(damaged(tmp_path, dict.fromkeys(names)), tmp_path / 'out.pth', 'mmdet')
    assert f'missing: stages.{stage}.blocks.0.' in report
    record_fault('damages')


def test_a_folder_needs_complete_weights(tmp_path, record_fault):
    for name in ('patch_embed.proj.weight', 'layers.0.blocks.0.mlp.fc1.weight', 'layers.0.blocks.0.norm1.weight'):
        with pytest.raises(CheckpointError, match=r'config\.json needs complete weights; missing: '):
            convert_checkpoint(damaged(tmp_path, {name: None}), tmp_path / 'out', 'hf')
        record_fault('damages')
