"""peft's LoRA on the backbone: the real package."""

import copy

import pytest
import torch
from helpers.frameworks import assert_compiled, assert_equal_maps, blocks_computed, require, train_a_step

from swin_backbone import SwinBackbone

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 75 * 101).view(2, 3, 75, 101).sin()
LORA = r'.*\.(qkv|proj|ffn\.layers\.0\.0|ffn\.layers\.1)'  # of the blocks: query, key and value, projection, fc1, fc2


def test_lora(tmp_path):
    """The recipe of docs/other_toolboxes.md."""
    peft = require('peft')
    plain = SwinBackbone(arch='nano', drop_path_rate=0.0)
    model = peft.get_peft_model(copy.deepcopy(plain), peft.LoraConfig(r=4, target_modules=LORA))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 8 * 4 * 2
    assert all('lora_' in name for name in trained)
    torch.testing.assert_close(model.eval()(X), plain.eval()(X), rtol=1e-4, atol=1e-4)  # B begins at 0

    train_a_step(model, lambda model: sum(x.square().mean() for x in model(X)))
    for name, parameter in model.named_parameters():
        if 'lora_B' in name:
            torch.nn.init.normal_(parameter, std=0.1)
    with torch.no_grad(), blocks_computed() as computed:
        expected = model.eval()(X)
    assert computed == []  # torch computes, module by module
    assert not torch.allclose(expected[3], plain(X)[3], atol=1e-2)

    model.save_pretrained(tmp_path)
    saved = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert saved['adapter_model.safetensors'] < sum(p.numel() for p in plain.parameters())  # of 4 bytes each
    again = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path).eval()
    with torch.no_grad():
        assert_equal_maps(again(X), expected)

    merged = model.merge_and_unload()
    assert type(merged) is SwinBackbone
    torch.testing.assert_close(merged(X), expected, rtol=1e-3, atol=1e-3)
    assert_compiled(lambda: merged(X), blocks=8)
    other = SwinBackbone(arch='nano').eval()
    other.load_state_dict(merged.state_dict(), strict=True)
    with torch.no_grad():
        assert_equal_maps(other(X), merged(X))


def test_lora_in_a_mask_rcnn_with_a_frozen_backbone():
    """The recipe of docs/other_toolboxes.md: the heads are trained, and of the backbone the adapters alone."""
    peft = require('peft')
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.registry import MODELS, init_default_scope
    from mmengine.structures import InstanceData

    from swin_backbone.openmmlab.config.files import read_config

    cfg = read_config('configs/demo/mask-rcnn_swin-nano_fpn_shapes.py')
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model)
    peft.inject_adapter_in_model(peft.LoraConfig(r=4, target_modules=LORA), model.backbone)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if name.startswith('backbone')} == {n for n in trained if 'lora_' in n}
    assert any(name.startswith('roi_head') for name in trained)
    sample = DetDataSample(
        metainfo=dict(
            img_shape=(64, 96), ori_shape=(64, 96), batch_input_shape=(64, 96), pad_shape=(64, 96), scale_factor=(1, 1)
        )
    )
    masks = BitmapMasks(torch.ones(1, 64, 96, dtype=torch.uint8).numpy(), 64, 96)
    sample.gt_instances = InstanceData(bboxes=torch.tensor([[4.0, 4, 60, 50]]), labels=torch.tensor([1]), masks=masks)

    def loss(model):
        data = model.data_preprocessor(dict(inputs=[torch.rand(3, 64, 96) * 255], data_samples=[sample]), True)
        return model.parse_losses(model.loss(data['inputs'], data['data_samples']))[0]

    train_a_step(model, loss)
    weights = peft.get_peft_model_state_dict(model.backbone)
    assert len(weights) == 8 * 4 * 2
