"""Checkpoints with LoRA matrices of peft, under the names that peft gives. tests/adapters/test_peft.py runs peft."""

from collections import OrderedDict

import pytest
import torch
from helpers.models.small_models import Detector, randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError

RANK, SCALE = 4, 0.5
LAYERS = ('attn.w_msa.qkv', 'attn.w_msa.proj', 'ffn.layers.0.0')


def adapted(prefix='', scale=SCALE):
    """Return the state_dict of a `LoraSwinBackbone`, and of a plain backbone with the same outputs."""
    merged = randomised().state_dict()
    state = (Detector(randomised()) if prefix else randomised()).state_dict()
    state.update({f'{prefix}{key}': value.clone() for key, value in merged.items()})
    layers = {}
    for key in [key for key in merged if key.removesuffix('.weight').endswith(LAYERS)]:
        layer, (rows, columns) = key.removesuffix('.weight'), merged[key].shape
        a_RC, b_DR = torch.randn(RANK, columns) / 10, torch.randn(rows, RANK) / 10
        state[f'{prefix}{layer}.lora_A.default.weight'] = a_RC
        state[f'{prefix}{layer}.lora_B.default.weight'] = b_DR
        merged[key] = merged[key] + SCALE * b_DR @ a_RC
        layers[layer] = {'default': scale}
    state._metadata[prefix.rstrip('.')]['swin_backbone.lora'] = layers
    return state, merged


@pytest.fixture
def weights(tmp_path):
    return tmp_path / 'weights.pth'


@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_matrices_are_merged(tmp_path, weights, prefix):
    state, merged = adapted(prefix)
    torch.save({'state_dict': state}, weights)
    convert_checkpoint(weights, tmp_path / 'timm.pth', 'timm')
    for path in (weights, tmp_path / 'timm.pth'):
        backbone = SwinBackbone(arch='nano')
        load_checkpoint(backbone, path)
        for key, value in merged.items():
            torch.testing.assert_close(backbone.state_dict()[key], value)


def test_matrices_are_merged_in_double_precision(weights):
    state, _ = adapted()
    double = {key: value.double() / 3 for key, value in state.items()}
    weights_of = OrderedDict(double)
    weights_of._metadata = state._metadata
    torch.save(weights_of, weights)
    backbone = SwinBackbone(arch='nano').double()
    load_checkpoint(backbone, weights)
    layer = 'stages.0.blocks.0.attn.w_msa.proj'
    b_DR, a_RC = (double[f'{layer}.lora_{letter}.default.weight'] for letter in 'BA')
    expected = double[f'{layer}.weight'] + SCALE * b_DR @ a_RC
    torch.testing.assert_close(backbone.get_submodule(layer).weight.data, expected, rtol=1e-14, atol=1e-15)


def test_a_norm_that_is_trained_whole_takes_its_place(tmp_path, weights):
    """peft keeps the norm before the training beside it."""
    state, merged = adapted()
    for leaf in ('weight', 'bias'):
        state[f'norm3.modules_to_save.default.{leaf}'] = merged[f'norm3.{leaf}'] = torch.randn(256)
        state[f'norm3.original_module.{leaf}'] = state.pop(f'norm3.{leaf}')
    torch.save(state, weights)
    convert_checkpoint(weights, tmp_path / 'official.pth', 'official')
    for path in (weights, tmp_path / 'official.pth'):
        backbone = SwinBackbone(arch='nano')
        assert not load_checkpoint(backbone, path).missing
        torch.testing.assert_close(backbone.state_dict()['norm3.weight'], merged['norm3.weight'])
    state['norm3.modules_to_save.second.weight'] = torch.ones(256)
    torch.save(state, weights)
    with pytest.raises(
        CheckpointError, match=r'adapters of peft \(norm3\.modules_to_save\.second\.weight\), and not how'
    ):
        load_checkpoint(SwinBackbone(arch='nano'), weights)


def peft_model(state):
    """Return the names of peft's get_peft_model."""
    renamed = {}
    for key, value in state.items():
        layer, _, leaf = key.rpartition('.')
        is_adapted = layer.endswith(LAYERS) and '.blocks.' in layer
        renamed[f'base_model.model.{layer}.base_layer.{leaf}' if is_adapted else f'base_model.model.{key}'] = value
    return renamed


UNKNOWN = {
    'no scale': lambda state: dict(state),
    'a scale that is no number': lambda _: adapted(scale='1')[0],
    'peft': peft_model,
    'adapters alone': lambda state: {key: value for key, value in state.items() if 'lora_' in key},
    'DoRA': lambda state: with_more(state, 'stages.0.blocks.0.attn.w_msa.qkv.lora_magnitude_vector.default.weight'),
    'a bias': lambda state: with_more(state, 'stages.0.blocks.0.attn.w_msa.qkv.lora_B.default.bias'),
    'a convolution': lambda state: with_more(state, 'patch_embed.projection.lora_A.default.weight'),
    'IA3': lambda _: {
        key.replace('qkv.', 'qkv.base_layer.'): value for key, value in randomised().state_dict().items()
    },
}  # fmt: skip


def with_more(state, name):
    state[name] = torch.ones(3)
    return state


@pytest.mark.parametrize('kind', UNKNOWN)
def test_adapters_that_cannot_be_merged_are_an_error(tmp_path, weights, record_fault, kind):
    torch.save(UNKNOWN[kind](adapted()[0]), weights)
    backbone = SwinBackbone(arch='nano')
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    message = r'it holds adapters of peft \(\S+.*\), and not how to merge them: .* merge_and_unload\(\)'
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(backbone, weights)
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    with pytest.raises(CheckpointError, match=message):
        convert_checkpoint(weights, tmp_path / 'out.pth', 'timm')
    assert not (tmp_path / 'out.pth').exists()
    record_fault('damages')


@pytest.mark.parametrize('change', [lambda value: value[:, :-1], lambda value: value[:-1], None])
def test_matrices_that_do_not_fit_are_an_error(weights, record_fault, change):
    state, _ = adapted()
    value = state.pop('stages.1.blocks.0.attn.w_msa.proj.lora_A.default.weight')
    if change:
        state['stages.1.blocks.0.attn.w_msa.proj.lora_A.default.weight'] = change(value)
    torch.save(state, weights)
    with pytest.raises(CheckpointError, match=r'proj has a weight and adapters of shapes .*: the file is damaged'):
        load_checkpoint(SwinBackbone(arch='nano'), weights)
    record_fault('damages')
