"""peft's LoRA on the backbone: the real package."""

import copy
import re

import pytest
import torch
from helpers.adapters.frameworks import (
    assert_compiled,
    assert_compiles,
    assert_equal_maps,
    assert_survives,
    require,
    train_a_step,
)
from helpers.checkpoints.origins import official
from helpers.models.small_models import Detector, randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import CheckpointError

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 75 * 101).view(2, 3, 75, 101).sin()
LORA = r'.*\.(qkv|proj|ffn\.layers\.0\.0|ffn\.layers\.1)'  # layers of a block: qkv, projection, fc1, fc2


def test_lora(tmp_path):
    """Run the LoRA recipe of docs/guides/other_toolboxes.md."""
    peft = require('peft')
    plain = SwinBackbone(arch='nano', drop_path_rate=0.0)
    model = peft.get_peft_model(copy.deepcopy(plain), peft.LoraConfig(r=4, target_modules=LORA))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len([name for name in trained if 'lora_' in name]) == len(trained) == 8 * 4 * 2
    torch.testing.assert_close(model.eval()(X), plain.eval()(X), rtol=1e-4, atol=1e-4)  # B begins at 0
    train_a_step(model, lambda model: sum(x.square().mean() for x in model(X)))
    with torch.no_grad():
        expected = model.eval()(X)
    assert_compiled(lambda: model(X), blocks=0)  # torch computes all modules

    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path).eval()
    with torch.no_grad():
        assert_equal_maps(again(X), expected)
    merged = model.merge_and_unload()
    assert type(merged) is SwinBackbone
    torch.testing.assert_close(merged(X), expected, rtol=1e-3, atol=1e-3)
    assert_compiled(lambda: merged(X), blocks=8)
    SwinBackbone(arch='nano').load_state_dict(merged.state_dict(), strict=True)


@pytest.fixture
def adapter():
    require('peft')
    import swin_backbone.adapters.peft

    return swin_backbone.adapters.peft


def lora_swin(adapter, seed=0, lora=None, **arguments):
    """Return a LoRA backbone with adapters that change the outputs."""
    torch.manual_seed(seed)
    model = adapter.LoraSwinBackbone(lora=lora or dict(r=4), **{'arch': 'nano', 'drop_path_rate': 0.0, **arguments})
    for name, parameter in model.named_parameters():
        if 'lora_B' in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def test_the_config_of_a_mask_rcnn_with_a_frozen_backbone(adapter, tmp_path):
    """Train heads and adapters. Save the adapters alone, and merge the adapters."""
    peft = require('peft')
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    from mmengine.registry import MODELS, init_default_scope

    from swin_backbone.openmmlab.config_files import read_config

    published = randomised(output_norms=False)
    torch.save(official(published.state_dict()), tmp_path / 'published.pth')
    cfg = read_config('configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_lora_1x_own.py')
    cfg.merge_from_dict({
        'model.backbone.arch': 'nano', 'model.backbone.drop_path_rate': 0.0,
        'model.backbone.init_cfg.checkpoint': str(tmp_path / 'published.pth'),
        'model.neck.in_channels': [32, 64, 128, 256],
    })  # fmt: skip
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model)
    model.init_weights()
    with torch.no_grad():
        assert type(model.backbone.merged()) is SwinBackbone
        assert_equal_maps(model.backbone.merged().eval()(X), published(X))  # new adapters change no outputs
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert [name for name in trained if name.startswith('backbone')] == [name for name in trained if 'lora_' in name]
    assert any(name.startswith('roi_head') for name in trained)
    train_a_step(model, lambda model: sum(x.square().mean() for x in model.extract_feat(X)))
    assert len(peft.get_peft_model_state_dict(model.backbone)) == 8 * 4 * 2


def test_adapters_alone_and_merged(adapter, tmp_path):
    peft = require('peft')
    model = lora_swin(adapter)
    with torch.no_grad():
        expected = model(X)
    torch.save(peft.get_peft_model_state_dict(model), tmp_path / 'adapters.pth')
    other = lora_swin(adapter, seed=1)
    weights = {key: value for key, value in model.state_dict().items() if 'lora_' not in key}
    assert weights.keys() == SwinBackbone(arch='nano').state_dict().keys()
    other.load_state_dict(weights, strict=False)
    peft.set_peft_model_state_dict(other, torch.load(tmp_path / 'adapters.pth'))
    with torch.no_grad():
        assert_equal_maps(other(X), expected)

    merged = model.merged()
    with torch.no_grad():
        torch.testing.assert_close(merged(X), expected, rtol=1e-3, atol=1e-3)
    assert_compiled(lambda: merged(X), blocks=8)
    assert_equal_maps(model(X), expected)  # `merged` leaves the model unchanged
    assert_survives(model, lambda model: model(X)[3])
    assert_compiles(model, X)
    exported = torch.export.export(merged, (X,)).module()
    torch.testing.assert_close(exported(X), expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_checkpoints_with_and_without_adapters(adapter, tmp_path):
    """Load checkpoints of an origin and of a whole detector, with and without adapters. Save and load with mmengine."""
    from mmengine.runner import load_checkpoint as load_by_mmengine
    from mmengine.runner import save_checkpoint
    from mmengine.runner.checkpoint import get_state_dict

    plain = randomised(output_norms=False)
    torch.save(official(plain.state_dict()), tmp_path / 'official.pth')
    model = adapter.LoraSwinBackbone(arch='nano').eval()
    report = load_checkpoint(model, tmp_path / 'official.pth')
    assert all('.lora_' in key for key in report.missing if not key.startswith('norm'))
    assert_equal_maps(model.merged()(X), plain(X))

    for seed, source in enumerate((plain, lora_swin(adapter))):
        whole = Detector(source)
        save_checkpoint(dict(state_dict=get_state_dict(whole)), str(tmp_path / 'whole.pth'))
        other = Detector(lora_swin(adapter, seed=2) if seed else adapter.LoraSwinBackbone(arch='nano')).eval()
        load_by_mmengine(other, str(tmp_path / 'whole.pth'), strict=bool(seed))
        assert_equal_maps(other.backbone.merged()(X), (source.merged() if seed else source)(X))


@pytest.mark.parametrize('lora', [dict(r=4, lora_alpha=3), dict(r=4, use_rslora=True)])
@torch.no_grad()
def test_a_plain_model_gets_merged_weights(adapter, tmp_path, lora):
    """A checkpoint of a detector has the scale of the adapters, so the tools merge."""
    from mmengine.runner import save_checkpoint
    from mmengine.runner.checkpoint import get_state_dict

    source = lora_swin(adapter, lora=lora)
    save_checkpoint(dict(state_dict=get_state_dict(Detector(source))), str(tmp_path / 'whole.pth'))
    convert_checkpoint(tmp_path / 'whole.pth', tmp_path / 'official.pth', 'official')
    for name in ('whole.pth', 'official.pth'):
        detector = Detector(SwinBackbone(arch='nano')).eval()
        load_checkpoint(detector, tmp_path / name)
        torch.testing.assert_close(detector.backbone(X), source(X), rtol=1e-3, atol=1e-3)


def switch(model, *switches):
    """Merge adapters in place, or switch them off."""
    for layer in model.modules():
        if hasattr(layer, 'enable_adapters'):
            if 'merged' in switches and hasattr(layer, 'merge'):
                layer.merge()
            layer.enable_adapters('off' not in switches)


@pytest.mark.parametrize(
    ('lora', 'switches'),
    [
        *((dict(r=4), switches) for switches in ((), ('merged',), ('off',), ('merged', 'off'))),
        (dict(r=4, modules_to_save=['norm3']), ('off',)),
        (dict(r=4, use_dora=True), ('merged',)),
    ],
)
@torch.no_grad()
def test_adapters_that_are_merged_in_place_or_off(adapter, tmp_path, lora, switches):
    """A file and `merged` have the outputs of the model. A model gets the weights of a file, merged or not."""
    source = lora_swin(adapter, lora=lora)
    for name, parameter in source.named_parameters():
        if 'modules_to_save' in name:
            torch.nn.init.normal_(parameter)
    on = source(X)
    switch(source, *switches)
    torch.save(source.state_dict(), tmp_path / 'weights.pth')
    expected = source(X)
    close = dict(rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(source.merged()(X), expected, **close)
    if 'use_dora' not in lora:
        plain = SwinBackbone(arch='nano').eval()
        load_checkpoint(plain, tmp_path / 'weights.pth')
        torch.testing.assert_close(plain(X), expected, **close)
    for target_switches in ((), ('merged',)):
        one, other = (lora_swin(adapter, seed=1, lora=lora) for _ in 'ab')
        for model in (one, other):
            switch(model, *target_switches)
        load_checkpoint(one, tmp_path / 'weights.pth')
        other.load_state_dict(torch.load(tmp_path / 'weights.pth'))
        for model in (one, other):
            torch.testing.assert_close(model(X), on, **close)


@torch.no_grad()
def test_a_norm_that_is_trained_whole(adapter, tmp_path):
    """A plain checkpoint is its beginning. peft and this package save the training."""
    peft = require('peft')
    published = randomised()
    torch.save(published.state_dict(), tmp_path / 'plain.pth')
    lora = dict(r=4, target_modules=LORA, modules_to_save=['norm3'])
    build = {
        'backbone': lambda: adapter.LoraSwinBackbone(lora=lora, arch='nano', drop_path_rate=0.0).eval(),
        'peft': lambda: peft.get_peft_model(SwinBackbone(arch='nano'), peft.LoraConfig(**lora)).eval(),
    }
    for kind, make in build.items():
        model, other = make(), make()
        report = load_checkpoint(model, tmp_path / 'plain.pth')
        assert all('.lora_' in name for name in report.missing)
        torch.testing.assert_close(model(X), published(X), rtol=1e-3, atol=1e-3)
        assert torch.equal(model.get_submodule('norm3' if kind == 'backbone' else 'base_model.model.norm3')
                           .original_module.weight, published.norm3.weight)  # fmt: skip
        torch.nn.init.normal_(next(value for name, value in model.named_parameters() if 'norm3.modules' in name))
        torch.save(model.state_dict(), tmp_path / 'trained.pth')
        assert not load_checkpoint(other, tmp_path / 'trained.pth').missing
        assert_equal_maps(other(X), model(X))
        if kind == 'backbone':
            plain = SwinBackbone(arch='nano').eval()
            load_checkpoint(plain, tmp_path / 'trained.pth')
            for merged in (plain, model.merged()):
                torch.testing.assert_close(merged(X), model(X), rtol=1e-3, atol=1e-3)
            adapters = peft.get_peft_model_state_dict(model)
            assert torch.equal(adapters['norm3.weight'], plain.norm3.weight)
            other = make()
            other.load_state_dict(published.state_dict(), strict=False)
            peft.set_peft_model_state_dict(other, adapters)
            assert_equal_maps(other(X), model(X))


@pytest.mark.parametrize('start', ['pissa', 'olora'])
def test_matrices_that_begin_as_a_change_of_the_weights_are_refused(adapter, start):
    with pytest.raises(ValueError, match=f'lora takes init_lora_weights that leave .*, got .*{start}'):
        adapter.LoraSwinBackbone(arch='nano', lora=dict(r=4, init_lora_weights=start))
    for known in (True, 'gaussian'):
        adapter.LoraSwinBackbone(arch='nano', lora=dict(r=4, init_lora_weights=known))


def test_another_scale_is_a_warning(adapter, tmp_path, caplog):
    source = lora_swin(adapter, lora=dict(r=4, lora_alpha=16))
    torch.save(source.state_dict(), tmp_path / 'weights.pth')
    load_checkpoint(lora_swin(adapter, lora=dict(r=4, lora_alpha=16)), tmp_path / 'weights.pth')
    assert 'lora_alpha' not in caplog.text
    load_checkpoint(lora_swin(adapter), tmp_path / 'weights.pth')
    assert re.search(
        r'LoRA: 32 layers have adapters of another scale .*\(stages\S+: 4\.0, here 2\.0\), .*: set lora_alpha',
        caplog.text,
    )


@torch.no_grad()
def test_a_model_of_peft_loads_weights_with_and_without_adapters(tmp_path):
    peft = require('peft')
    plain = randomised(output_norms=False)
    torch.save(official(plain.state_dict()), tmp_path / 'official.pth')
    one, other = (peft.get_peft_model(SwinBackbone(arch='nano'), peft.LoraConfig(target_modules=LORA)) for _ in 'ab')
    report = load_checkpoint(one.eval(), tmp_path / 'official.pth')
    assert all('.lora_' in name or '.norm' in name for name in report.missing)
    torch.testing.assert_close(one(X), plain(X), rtol=1e-3, atol=1e-3)
    for name, parameter in one.named_parameters():
        if 'lora_B' in name:
            torch.nn.init.normal_(parameter, std=0.1)
    torch.save(one.state_dict(), tmp_path / 'peft.pth')
    assert not load_checkpoint(other.eval(), tmp_path / 'peft.pth').missing
    assert_equal_maps(other(X), one(X))
    with pytest.raises(CheckpointError, match='it holds adapters of peft'):
        load_checkpoint(SwinBackbone(arch='nano'), tmp_path / 'peft.pth')
