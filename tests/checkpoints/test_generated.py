"""Generated checkpoints: every origin in every container, under every wrapper, in every dtype and kind of file."""

import json
import pickle
import random
import re
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from helpers.checkpoints import origins
from helpers.models.small_models import Detector

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError

X = torch.linspace(-1, 1, 2 * 4 * 45 * 70).view(2, 4, 45, 70).sin()
FAMILIES = {  # functions that write an origin's weights, independent of the package
    SwinBackbone: {name: save for name, (save, *_) in origins.ORIGINS.items()},
    SwinV2Backbone: {'plain': dict, 'torchvision_v2': origins.torchvision_v2, 'simmim_v2': origins.simmim_v2},
    SwinMLPBackbone: {'plain': dict},
}
FORMATS = {
    SwinBackbone: ('mmdet', 'official', 'timm', 'torchvision', 'hf'),
    SwinV2Backbone: ('mmdet', 'official', 'timm', 'hf'),
    SwinMLPBackbone: ('mmdet', 'official'),
}
CONTAINERS = {
    'none': lambda state: state,
    'state_dict': lambda state: {'epoch': 3, 'state_dict': state},
    'model': lambda state: {'model': state, 'optimizer': {'state': {0: {'exp_avg': torch.zeros(3)}}}},
    'own': lambda state: {'net': state, 'args': {'lr': 0.1}},
    'nested': lambda state: {'checkpoint': {'best': {'weights': state}}, 'step': 7},
    'averaged': lambda state: {'model': {key: value * 0 for key, value in state.items()}, 'model_ema': state},
}
PREFIXES = ('', 'module.', 'backbone.', 'model.backbone.', 'net.swin_t.', 'module.model.', '_orig_mod.encoder.')
MODELS = {
    'backbone': lambda backbone: backbone,
    'detector': Detector,
    'parallel': lambda backbone: torch.nn.DataParallel(Detector(backbone)),
}


SAVED = [(kind, origin) for kind, names in FAMILIES.items() for origin in names]


def draw(choose, kind, origin):
    """Draw a backbone of an origin, and a way to save the weights."""
    arguments = dict(
        embed_dims=choose([16, 32]), depths=tuple(choose([1, 2]) for _ in range(4)), drop_path_rate=0.0,
        num_heads=choose([(1, 2, 4, 8), (2, 4, 8, 16)]), mlp_ratio=choose([1, 2, 4]), in_channels=choose([1, 3, 4]),
        window_size=7 if kind is SwinBackbone else choose([4, 6, 8]),
    )  # fmt: skip
    if kind is SwinBackbone:
        arguments |= dict(use_abs_pos_embed=choose([False, False, True]), pretrain_img_size=choose([32, 64]))
    if kind is not SwinMLPBackbone and origin != 'torchvision_v2':
        arguments['qkv_bias'] = choose([True, True, False])
    return SimpleNamespace(
        kind=kind, origin=origin, arguments=arguments, container=choose(sorted(CONTAINERS)), prefix=choose(PREFIXES),
        dtype=choose([torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64]),
        file=choose(['zip', 'zip', 'legacy', 'safetensors', 'shards', 'pickle']), extra=choose([True, False]),
        inside=choose(['', 'module.', '_checkpoint_wrapped_module.']), into=choose(sorted(MODELS)),
        to=choose(FORMATS[kind]),
    )  # fmt: skip


# What a backbone computes or lacks.
NOT_LOADED = re.compile(r'relative_position_index|attn_mask|relative_coords_table|(^|\.)head\.')
ENTRIES = 'state_dict_ema', 'state_dict', 'model'  # of the origins with weights


def insert(key, wrapper):
    """Insert the name of a wrapped layer before the name of its weight."""
    layer, dot, leaf = key.rpartition('.')
    return f'{layer}.{wrapper}{leaf}' if dot else key


def write(folder, case, loaded):
    """Write the contents of a checkpoint in a kind of file."""
    state = next((loaded[name] for name in ENTRIES if name in loaded), loaded)
    state = {case.prefix + insert(key, case.inside): value for key, value in state.items()}
    if case.extra:
        state |= {'steps': torch.tensor(3), f'{case.prefix}head.bn.num_batches_tracked': torch.tensor(1)}
        state |= {'decoder.conv.weight': torch.ones(3, 3), 'class_weights': torch.ones(5)}
    if case.file in ('safetensors', 'shards'):
        state = {key: value.clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    if case.file == 'safetensors':
        safetensors.torch.save_file(state, folder / 'weights.safetensors')
        return folder / 'weights.safetensors'
    if case.file == 'shards':
        names = list(state)
        shard_of = {name: f'model-{number % 3}.safetensors' for number, name in enumerate(names)}
        for shard in set(shard_of.values()):
            part = {name: state[name] for name in names if shard_of[name] == shard}
            safetensors.torch.save_file(part, folder / shard)
        (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': shard_of}))
        return folder
    if case.file == 'pickle':
        arrays = {key: value.to(torch.float32 if value.is_floating_point() else value.dtype).numpy()
                  for key, value in state.items()}  # fmt: skip
        (folder / 'weights.pkl').write_bytes(pickle.dumps({'model': arrays}, protocol=2))
        return folder / 'weights.pkl'
    options = {'_use_new_zipfile_serialization': False} if case.file == 'legacy' else {}
    torch.save(CONTAINERS[case.container](state), folder / 'weights.pth', **options)
    return folder / 'weights.pth'


def generate(seed):
    """Draw a case of the origin that `seed` counts; return it with its backbone, and what its origin saves."""
    rng = random.Random(seed)
    torch.manual_seed(rng.randrange(2**31))
    case = draw(rng.choice, *SAVED[seed % len(SAVED)])
    source = case.kind(**case.arguments).eval()
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    state = {key: value.to(case.dtype) for key, value in source.state_dict().items()}
    source.load_state_dict({key: value.float() for key, value in state.items()})
    return rng, case, source, FAMILIES[case.kind][case.origin](dict(state))


@pytest.mark.parametrize('seed', [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 100))])
@torch.no_grad()
def test_a_file_that_lacks_weights_names_them(tmp_path, caplog, record_fault, seed):
    rng, case, source, loaded = generate(seed)
    entry = next((name for name in ENTRIES if name in loaded), None)
    inside = loaded[entry] if entry else loaded
    inside = {key: value for key, value in inside.items() if not key.startswith('student.')}  # complete
    names = [key for key, value in inside.items() if value.dim() and not NOT_LOADED.search(key)]
    lacking = rng.sample(names, rng.choice([1, 1, 2, 5, 20]))
    rest = {key: value for key, value in inside.items() if key not in lacking}
    path = write(tmp_path, case, {entry: rest} if entry else rest)
    backbone = case.kind(**case.arguments).eval()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    record_fault('damages')
    if any(inside[key].shape[2:] == (4, 4) and 'absolute' not in key for key in lacking):  # of patches
        with pytest.raises(CheckpointError, match=r'it has no patch_embed\.projection\.weight'):
            load_checkpoint(MODELS[case.into](backbone), path)
        return
    report = load_checkpoint(MODELS[case.into](backbone), path)
    missing, after = {name.rpartition('backbone.')[2] for name in report.missing}, backbone.state_dict()
    assert missing, (case, lacking)
    assert all(name in caplog.text for name in missing), 'Left at their initialisation'
    for key, value in source.state_dict().items():
        assert torch.equal(after[key], before[key] if key in missing else value), (case, lacking, key)
    stages = {name for name in missing if not name.startswith('norm')}
    assert ('missing' in convert_checkpoint(path, tmp_path / 'converted.pth', case.to)) >= bool(stages), (case, lacking)


FAST = len(SAVED)  # each origin once
SEEDS = [*range(FAST), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FAST, 260))]


@pytest.mark.parametrize('seed', SEEDS)
@torch.no_grad()
def test_weights_and_outputs_are_those_that_were_saved(tmp_path, seed):
    _, case, source, loaded = generate(seed)
    path = write(tmp_path, case, loaded)
    backbone, again = (case.kind(**case.arguments).eval() for _ in 'ab')
    report = load_checkpoint(MODELS[case.into](backbone), path)
    without = {name.rpartition('backbone.')[2] for name in report.missing}
    assert all(name.startswith('norm') for name in without), case
    if case.kind is SwinBackbone:
        _, title, has_output_norms = origins.ORIGINS[case.origin]
        assert report.origin.partition(',')[0] == title.partition(',')[0], case
        assert bool(without) != has_output_norms, case
    assert ('V2' in report.origin) == (case.kind is SwinV2Backbone), case
    assert not report.renamed, case
    assert not report.resized, case
    expected = {key: value for key, value in source.state_dict().items() if key not in without}
    assert all(torch.equal(backbone.state_dict()[key], value) for key, value in expected.items()), case
    source.load_state_dict({key: value for key, value in backbone.state_dict().items() if key in without}, strict=False)
    x = X[:, : case.arguments['in_channels']]
    assert all(torch.equal(output, other) for output, other in zip(backbone(x), source(x))), case

    assert 'missing' not in convert_checkpoint(path, tmp_path / 'converted.safetensors', case.to), case
    load_checkpoint(again, tmp_path / 'converted.safetensors')
    blocks = {key: value for key, value in expected.items() if not key.startswith('norm')}
    assert all(torch.equal(again.state_dict()[key], value) for key, value in blocks.items()), case
