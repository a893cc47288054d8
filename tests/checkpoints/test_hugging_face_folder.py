"""Write and read folders of transformers, with the config.json for `from_pretrained`."""

import json

import pytest
import safetensors.torch
import torch
from helpers.checkpoints.origins import ORIGINS
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError

PEER = "transformers is not installed: pip install -e '.[peers]'"


def bare():
    """Return the weights of a SwinModel file: a backbone and the norm of the last stage."""
    state = randomised(False).state_dict()
    return {key.removeprefix('swin.'): value for key, value in ORIGINS['hugging_face'][0](state).items()
            if not key.startswith('classifier')}  # fmt: skip


def test_the_folder_has_a_config_of_the_weights(tmp_path):
    torch.save(ORIGINS['official'][0](randomised(False).state_dict()), tmp_path / 'in.pth')
    text = convert_checkpoint(tmp_path / 'in.pth', tmp_path / 'swin-0.1', 'hf')
    assert text.split(' to ')[1].startswith(f'{tmp_path}/swin-0.1 (Hugging Face)')
    assert {'config.json', 'model.safetensors'} == {path.name for path in (tmp_path / 'swin-0.1').iterdir()}
    config = json.loads((tmp_path / 'swin-0.1' / 'config.json').read_text())
    assert config['architectures'] == ['SwinForImageClassification']
    assert len(config['id2label']) == 1000
    assert (config['window_size'], config['image_size'], config['embed_dim']) == (7, 224, 32)
    assert (config['depths'], config['num_heads']) == ([2, 2, 2, 2], [2, 4, 8, 16])


def test_a_bare_model_comes_back_with_its_names(tmp_path):
    source = {key: value for key, value in bare().items() if not key.endswith('_index')}
    safetensors.torch.save_file(source, tmp_path / 'bare.safetensors')
    convert_checkpoint(tmp_path / 'bare.safetensors', tmp_path / 'back.safetensors', 'hf')
    back = safetensors.torch.load_file(tmp_path / 'back.safetensors')
    assert back.keys() == source.keys()
    assert all(torch.equal(back[key], value) for key, value in source.items())


def write_shards(folder, name, weights, parts=3):
    """Write weights in shards and their index, as transformers does."""
    stem, suffix = name.split('.')
    keys = list(weights)
    names = [f'{stem}-{part + 1:05}-of-{parts:05}.{suffix}' for part in range(parts)]
    write = torch.save if suffix == 'bin' else safetensors.torch.save_file
    for part, shard in enumerate(names):
        write({key: weights[key] for key in keys[part::parts]}, folder / shard)
    shard_of = {key: names[number % parts] for number, key in enumerate(keys)}
    (folder / f'{name}.index.json').write_text(json.dumps({'metadata': {'total_size': 1}, 'weight_map': shard_of}))
    return [folder / name for name in names]


@pytest.mark.parametrize('name', ['model.safetensors', 'pytorch_model.bin'])
def test_a_folder_of_shards(tmp_path, name):
    weights = bare()
    write_shards(tmp_path, name, weights)
    safetensors.torch.save_file(weights, tmp_path / 'whole.safetensors')
    expected, from_folder, from_index = (SwinBackbone(arch='nano') for _ in range(3))
    report = load_checkpoint(expected, tmp_path / 'whole.safetensors')
    for backbone, path in ((from_folder, tmp_path), (from_index, tmp_path / f'{name}.index.json')):
        assert set(load_checkpoint(backbone, path).loaded) == set(report.loaded)
        for key in report.loaded:
            assert torch.equal(backbone.state_dict()[key], expected.state_dict()[key])
    convert_checkpoint(tmp_path, tmp_path / 'out.pth', 'mmdet')


def damage_shards(folder, kind):
    first, *_ = write_shards(folder, 'model.safetensors', bare())
    index = folder / 'model.safetensors.index.json'
    if kind == 'missing':
        first.unlink()
    elif kind == 'half':
        first.write_bytes(first.read_bytes()[:1000])
    elif kind == 'another':
        first.write_bytes(safetensors.torch.save({'other': torch.ones(1)}))
    elif kind == 'list':
        torch.save([torch.ones(1)], first)
    elif kind == 'outside':  # a shard of another folder is never read
        index.write_text(index.read_text().replace(first.name, '../secret.safetensors'))
        (folder.parent / 'secret.safetensors').write_bytes(first.read_bytes())
    else:
        itself = json.dumps({'weight_map': {'a': index.name}})
        texts = {'no JSON': '{', 'no map': '{}', 'no names': '{"weight_map": {"a": 3}}', 'itself': itself}
        index.write_text(texts.get(kind, '{"weight_map": {"a": ""}}'))


SHARDS = {
    'missing': r'lists model-00001-of-00003\.safetensors, and there is no such file',
    'half': r"checkpoint 'model-00001-of-00003\.safetensors': the file is truncated",
    'another': r'lists weights that its shards lack: .* and \d+ more',
    'list': 'model-00001.* holds a list, and no weights',
    'outside': r'lists secret\.safetensors, and there is no such file',
    **dict.fromkeys(('no JSON', 'no map', 'no names', 'an empty name', 'itself'), 'lists no shards of weights'),
}


@pytest.mark.parametrize('kind', SHARDS)
def test_damaged_shards_are_one_sentence(tmp_path, record_fault, kind):
    (tmp_path / 'model').mkdir()
    damage_shards(tmp_path / 'model', kind)
    with pytest.raises(CheckpointError, match=SHARDS[kind]) as error:
        load_checkpoint(SwinBackbone(arch='nano'), tmp_path / 'model')
    assert str(error.value).startswith(f"checkpoint '{tmp_path / 'model'}': ")
    assert len(str(error.value).splitlines()) == 1
    record_fault('damages')


def without_first_linears():
    backbone = SwinBackbone(arch='nano')
    for stage in backbone.stages:
        for block in stage.blocks:
            block.ffn.layers[0] = torch.nn.Identity()
    return backbone


@pytest.mark.parametrize(
    ('state', 'to', 'message'),
    [
        (None, 'mmdet', r'a folder without model\.safetensors or pytorch_model\.bin; name a file in it'),
        (lambda: SwinV2Backbone(arch='nano'), 'hf', r'do not say the window, which config\.json needs: write a file'),
        (without_first_linears, 'hf', r'complete weights; missing: stages\.0\.blocks\.0\.ffn\.layers\.0\.0\.weight'),
        (lambda: SwinBackbone(arch='nano', window_size=(7, 7, 14, 7)), 'hf', 'one square window for all stages'),
        (lambda: SwinBackbone(arch='nano', patch_norm=False), 'hf', 'no Swin V1 with no norm of patches: write a file'),
        (
            lambda: SwinV2Backbone(arch='nano', extra_norm_every_n_blocks=2),
            'hf',
            'no Swin V2 with a third norm in a block: write a file',
        ),
        (
            lambda: SwinV2Backbone(arch='nano', use_abs_pos_embed=True),
            'hf',
            'computes no Swin V2 with an absolute position embedding: write a file',
        ),
        (lambda: SwinMLPBackbone(arch='nano'), 'hf', 'it holds a Swin-MLP, which hf has not'),
    ],
    ids=[
        'empty',
        'no window',
        'no first linear',
        'windows of stages',
        'no norm of patches',
        'a third norm',
        'an embedding',
        'Swin-MLP',
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(tmp_path, record_fault, state, to, message):
    source = tmp_path / 'source'
    source.mkdir()
    if state:
        torch.save(dict(state().state_dict()), source / 'pytorch_model.bin')  # without sizes
    with pytest.raises(CheckpointError, match=message):
        convert_checkpoint(source, tmp_path / 'out', to)
    assert not (tmp_path / 'out').exists()
    record_fault('damages')


@pytest.mark.peer
@pytest.mark.parametrize('window', [7, 12])
def test_transformers_opens_the_folder(tmp_path, window):
    """Compare the outputs of models from converted files, in both directions."""
    transformers = pytest.importorskip('transformers', reason=PEER)
    ours = randomised(window_size=window)
    torch.save(ours.state_dict(), tmp_path / 'in.pth')
    convert_checkpoint(tmp_path / 'in.pth', tmp_path / 'out', 'hf')
    theirs, text = transformers.SwinBackbone.from_pretrained(tmp_path / 'out', output_loading_info=True)
    assert not [key for key in text['missing_keys'] if 'layernorm' not in key]
    assert not text['unexpected_keys']
    assert not text['mismatched_keys']
    x = torch.randn(1, 3, 32 * window, 32 * window)
    with torch.no_grad():
        for expected, output in zip(ours(x), theirs.eval()(x).feature_maps):
            torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
    theirs.save_pretrained(tmp_path / 'theirs')
    again = SwinBackbone(arch='nano', window_size=window)
    load_checkpoint(again, tmp_path / 'theirs')
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in ours.state_dict().items())


@pytest.mark.peer
@pytest.mark.parametrize('kind', ['SwinModel', 'SwinForImageClassification', 'Swinv2Model'])
def test_their_folders_there_and_back(tmp_path, kind):
    transformers = pytest.importorskip('transformers', reason=PEER)
    configuration = transformers.Swinv2Config if 'v2' in kind else transformers.SwinConfig
    config = configuration(embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], num_labels=5)
    theirs = getattr(transformers, kind)(config).eval()
    theirs.save_pretrained(tmp_path / 'theirs')
    if 'v2' in kind:  # a V2 file has no tables that show the window, so the test saves the config
        convert_checkpoint(tmp_path / 'theirs', tmp_path / 'back' / 'model.safetensors', 'hf')
        config.save_pretrained(tmp_path / 'back')
    else:
        convert_checkpoint(tmp_path / 'theirs', tmp_path / 'back', 'hf')
    back, text = getattr(transformers, kind).from_pretrained(tmp_path / 'back', output_loading_info=True)
    assert not any(text[key] for key in ('missing_keys', 'unexpected_keys', 'mismatched_keys'))
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-5)
