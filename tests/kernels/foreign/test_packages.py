"""`swin_backbone.accelerate` on the Swins of timm, torchvision, transformers and mmpretrain: the real packages."""

import copy

import pytest
import torch
from helpers.adapters.acceleration import accelerated, assert_accelerates, assert_close, results
from helpers.adapters.frameworks import require

import swin_backbone
from swin_backbone.kernels.foreign import accelerate as swap

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 64 * 88).view(2, 3, 64, 88).sin()
ODD = X[:, :, :61, :83]
TWO_STAGES = dict(depths=(2, 2), num_heads=(1, 2), drop_path_rate=0.3)


def of_timm(name, **arguments):
    arguments = dict(features_only=True, out_indices=(0, 1), img_size=(64, 88), embed_dim=16, **arguments)
    return require('timm').create_model(name, **arguments, **TWO_STAGES)


def of_torchvision(version, window_size, dropout=0.0):
    swin = pytest.importorskip(require('torchvision').__name__ + '.models.swin_transformer')
    kinds = {1: {}, 2: dict(block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2)}[version]
    stages = dict(embed_dim=16, depths=[2, 2], num_heads=[1, 2], stochastic_depth_prob=0.3, num_classes=5)
    return swin.SwinTransformer([4, 4], window_size=window_size, attention_dropout=dropout, **stages, **kinds)


def of_transformers(name, config, **arguments):
    transformers = require('transformers')
    arguments = dict(embed_dim=16, window_size=4, image_size=64, **TWO_STAGES) | arguments
    if name.endswith('Backbone'):
        arguments['out_features'] = ['stage1', 'stage2']
    kind = getattr(transformers, name, None) or transformers.models.maskformer.modeling_maskformer_swin.__dict__[name]
    return kind(getattr(transformers, config)(**arguments))


def of_mmpretrain(name, **arguments):
    models = pytest.importorskip('mmpretrain.models')  # mmpretrain fails with transformers 5
    arch = dict(embed_dims=16, depths=(2, 2), num_heads=(1, 2), extra_norm_every_n_blocks=2)
    if name == 'SwinTransformer':
        del arch['extra_norm_every_n_blocks']
    return getattr(models, name)(arch, img_size=64, drop_path_rate=0.3, out_indices=(0, 1), **arguments)


@pytest.mark.parametrize(
    ('name', 'arguments'),
    [
        ('swin_tiny_patch4_window7_224', dict(window_size=7)),  # no map is a multiple of the window
        ('swin_tiny_patch4_window7_224', dict(window_size=(3, 5))),
        ('swin_tiny_patch4_window7_224', dict(window_size=9, always_partition=True)),  # windows larger than the map
        ('swinv2_tiny_window8_256', dict(window_size=7)),
        ('swinv2_tiny_window8_256', dict(window_size=4, pretrained_window_sizes=(3, 6))),
    ],
)
def test_timm(name, arguments, calls):
    assert_accelerates(of_timm(name, **arguments), X, list, calls, blocks=4, layers=5)
    model = of_timm(name, **arguments, strict_img_size=False)
    assert_accelerates(model, X[:, :, :60, :76], list, calls, blocks=4, layers=5)


def test_timm_gets_another_input_size_after_acceleration(calls):
    model = require('timm').create_model('swin_tiny_patch4_window7_224', embed_dim=16, num_classes=5, **TWO_STAGES)
    change = lambda model: model.set_input_size((64, 88), window_size=(4, 6))  # noqa: E731
    assert_accelerates(model, X, lambda y: [y], calls, blocks=4, layers=5, change=change)


@pytest.mark.parametrize(('version', 'window_size'), [(1, [4, 4]), (1, [5, 30]), (2, [4, 4]), (2, [16, 4])])
def test_torchvision(version, window_size, calls):
    size = ODD if max(window_size) <= 16 else X
    blocks = 4 if max(window_size) <= 16 else 0
    model = of_torchvision(version, window_size)
    merging, map_HWC = model.features[2], torch.randn(9, 6, 16)
    expected = merging(map_HWC)
    assert torch.equal(swap.accelerate_swin(model) and merging(map_HWC), expected)  # a map without a batch dimension
    swap.restore_swin(model)
    assert_accelerates(model, size, lambda y: [y], calls, blocks, layers=1 + blocks)


def test_torchvisions_dropout_rates_are_obeyed(calls):
    model = of_torchvision(1, [4, 4])
    swap.accelerate_swin(model)
    for module in model.modules():
        if hasattr(module, 'attention_dropout'):
            module.attention_dropout = 0.5
    calls.clear()
    model.train()(X)
    assert not calls
    model.eval()(X)
    assert len(calls) == 4


MODELS = [
    ('SwinModel', 'SwinConfig'),
    ('SwinBackbone', 'SwinConfig'),
    ('Swinv2Model', 'Swinv2Config'),
    ('Swinv2Backbone', 'Swinv2Config'),
    ('MaskFormerSwinBackbone', 'MaskFormerSwinConfig'),
    ('DonutSwinModel', 'DonutSwinConfig'),
]


def maps_of(output):
    return output.feature_maps if 'feature_maps' in output else [output.last_hidden_state]


@pytest.mark.parametrize(('name', 'config'), MODELS)
@pytest.mark.parametrize('window_size', [4, 8])
def test_transformers(name, config, window_size, calls):
    model = of_transformers(name, config, window_size=window_size, pretrained_window_sizes=(6, 3))
    assert_accelerates(model, ODD, maps_of, calls, blocks=4, layers=6)


@pytest.mark.parametrize(('name', 'config'), MODELS[:4])
def test_hidden_states_and_attentions_of_transformers(name, config, calls):
    model = of_transformers(name, config, attn_implementation='eager').eval()
    given = dict(output_hidden_states=True, output_attentions=True)
    original = model(X, **given)
    swap.accelerate_swin(model)
    calls.clear()
    ours = model(X, **given)
    assert ours.keys() == original.keys()
    for key in ('hidden_states', 'attentions'):
        assert_close(ours[key], original[key])
    assert not calls


WHOLE = [
    ('Mask2Former', 'Mask2FormerForUniversalSegmentation', 'swin'),
    ('MaskFormer', 'MaskFormerForInstanceSegmentation', 'swin'),
    ('OneFormer', 'OneFormerForUniversalSegmentation', 'swin'),
    ('GroundingDino', 'GroundingDinoModel', 'swin'),
    ('UperNet', 'UperNetForSemanticSegmentation', 'swin'),
]


@pytest.mark.parametrize(('config', 'name', 'kind'), WHOLE)
def test_whole_models_of_transformers(config, name, kind, calls):
    transformers = require('transformers')
    stages = dict(embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 2], window_size=4)
    backbone = transformers.SwinConfig(**stages, out_features=['stage1', 'stage2', 'stage3', 'stage4'])
    if config == 'GroundingDino':
        backbone.set_output_features_output_indices(['stage2', 'stage3', 'stage4'], None)
    model = getattr(transformers, name)(getattr(transformers, f'{config}Config')(backbone_config=backbone)).eval()
    encoder = next(one for one in model.modules() if hasattr(one, 'hidden_states_norms'))
    with torch.no_grad():
        original = encoder(X).feature_maps
        swin_backbone.accelerate(model)
        calls.clear()
        assert_close(encoder(X).feature_maps, original)
    assert len(calls) == 5


@pytest.mark.parametrize('pad_small_map', [False, True])
@pytest.mark.parametrize('name', ['SwinTransformer', 'SwinTransformerV2'])
@pytest.mark.parametrize('window_size', [4, 8])
def test_mmpretrain(name, pad_small_map, window_size, calls):
    window = dict(window_size=window_size, pad_small_map=pad_small_map)
    if name == 'SwinTransformerV2':
        window['pretrained_window_sizes'] = (0, 6)
    blocks = 1 if name == 'SwinTransformerV2' else 4  # V2 drops paths before a norm, from the second block on
    assert_accelerates(of_mmpretrain(name, **window), ODD, list, calls, blocks, layers=8)
    model = of_mmpretrain(name, **window)
    model.eval()
    assert_accelerates(model, ODD, list, calls, blocks=4, layers=8)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_dtypes_under_autocast(dtype, calls):
    for model in (of_timm('swin_tiny_patch4_window7_224', window_size=7), of_transformers(*MODELS[1])):
        maps = list if hasattr(model, 'feature_info') else maps_of
        with torch.no_grad(), torch.autocast('cpu', dtype):
            original = maps(model.eval()(X))
            swap.accelerate_swin(model)
            calls.clear()
            ours = maps(model(X))
        assert len(calls) == 4
        for a, b in zip(ours, original):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a.float(), b.float(), rtol=0.05, atol=0.05 * float(b.abs().max()))


def test_gradient_checkpointing(calls):
    timm = of_timm('swin_tiny_patch4_window7_224', window_size=7)
    timm.set_grad_checkpointing(True)
    transformers = of_transformers(*MODELS[1])
    transformers.gradient_checkpointing_enable()
    for model, maps, layers in ((timm, list, 5), (transformers, maps_of, 6)):
        assert_accelerates(model.train(), X, maps, calls, range(5, 13), layers)


def test_scripts_traces_and_compiles_as_before():
    model = of_timm('swin_tiny_patch4_window7_224', window_size=7).eval()
    original = model(X)
    swap.accelerate_swin(model)
    assert_close(torch.jit.script(copy.deepcopy(model))(X), original)
    assert_close(torch.compile(model, backend='eager')(X), original)
    assert_close(torch.export.export(model, (X,)).module()(X), original)
    assert len(accelerated(model)) == 5
    assert_close(results(model, X), results(swap.restore_swin(model) or model, X))
