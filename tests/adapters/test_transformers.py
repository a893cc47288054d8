"""Run the backbones in the real transformers package, with files like on the Hub."""

import pytest
import torch
from helpers.adapters.frameworks import (
    assert_compiled,
    assert_equal_maps,
    require,
    train_a_step,
)

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 45 * 70).view(2, 3, 45, 70).sin()
FOUR = ['stage1', 'stage2', 'stage3', 'stage4']


@pytest.fixture(scope='module')
def adapter():
    require('transformers')
    import swin_backbone.adapters.transformers

    return swin_backbone.adapters.transformers


@pytest.fixture(scope='module')
def transformers(adapter):
    return require('transformers')


def small(adapter, out_features=FOUR, arguments=None, **config):
    arguments = {'drop_path_rate': 0.0, **(arguments or {})}
    config = adapter.SwinBackboneConfig(arch='nano', out_features=out_features, arguments=arguments, **config)
    return adapter.SwinBackboneModel(config).eval()


def upernet(adapter, transformers, **config):
    backbone_config = small(adapter).config
    return transformers.UperNetForSemanticSegmentation(
        transformers.UperNetConfig(
            backbone_config=backbone_config, num_labels=4, hidden_size=16, auxiliary_in_channels=128,
            auxiliary_channels=16, **config,
        )
    )  # fmt: skip


def test_outputs_by_name_and_index_follow_transformers_swin(adapter, transformers):
    theirs = transformers.SwinConfig(out_features=['stage2', 'stage4'])
    ours = adapter.SwinBackboneConfig(arch='nano', out_indices=theirs.out_indices)
    assert (ours.out_features, ours.stage_names) == (theirs.out_features, theirs.stage_names)
    model = adapter.SwinBackboneModel(ours)
    assert [x.shape[1] for x in model(X).feature_maps] == model.channels == [64, 256]


def test_a_folder_with_config_and_safetensors(adapter, tmp_path):
    model = small(adapter, arguments={'window_size': 5})
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {'config.json', 'model.safetensors'}
    again = adapter.SwinBackboneModel.from_pretrained(tmp_path)
    assert again.backbone.window_size[0] == (5, 5)
    with torch.no_grad():
        assert_equal_maps(again(X).feature_maps, model(X).feature_maps)
        fewer = adapter.SwinBackboneModel.from_pretrained(tmp_path, out_features=['stage3'])
        assert_equal_maps(fewer(X).feature_maps, model(X).feature_maps[2:3])


def test_missing_weights_are_initialised_as_elsewhere(adapter, tmp_path):
    """transformers creates models on the meta device, and initialises weights that a file lacks."""
    model = small(adapter)
    state = {key: value for key, value in model.state_dict().items() if 'stages.0' not in key}
    model.save_pretrained(tmp_path, state_dict=state)
    again = adapter.SwinBackboneModel.from_pretrained(tmp_path).backbone
    block = again.stages[0].blocks[0]
    assert block.attn.w_msa.relative_position_bias_table.abs().max() < 0.2
    assert 0.015 < block.attn.w_msa.qkv.weight.std() < 0.025
    assert (block.norm1.weight == 1).all()
    assert torch.equal(again.stages[1].blocks[0].norm1.weight, model.backbone.stages[1].blocks[0].norm1.weight)


@pytest.mark.parametrize('family', ['v1', 'v2', 'mlp'])
def test_a_fresh_model_begins_as_elsewhere(adapter, tmp_path, family):
    """Compare a fresh model, and a model from an empty file, with `init_weights` of the backbone."""
    fresh = small(adapter, family=family)
    fresh.save_pretrained(tmp_path, state_dict={'backbone.norm3.bias': fresh.backbone.norm3.bias})
    expected = adapter.FAMILIES[family](arch='nano')
    expected.init_weights()
    for model in (fresh, adapter.SwinBackboneModel.from_pretrained(tmp_path)):
        for name, value in expected.state_dict().items():
            other = model.backbone.state_dict()[name]
            if value.std() == 0:  # a constant
                assert torch.equal(other, value), name
            else:
                torch.testing.assert_close(other.std(), value.std(), rtol=0.5, atol=0, msg=name)


def mask2former(adapter, transformers):
    config = transformers.Mask2FormerConfig(
        backbone_config=small(adapter).config, num_labels=3, num_queries=4, encoder_layers=1, decoder_layers=2,
        feature_size=32, hidden_dim=32, mask_feature_size=32, num_attention_heads=2, encoder_feedforward_dim=16,
        dim_feedforward=16,
    )  # fmt: skip
    return transformers.Mask2FormerForUniversalSegmentation(config)


def detr(adapter, transformers):
    config = transformers.DetrConfig(
        backbone_config=small(adapter, out_features=['stage4']).config, use_timm_backbone=False, encoder_layers=1,
        decoder_layers=1, num_queries=4, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, num_labels=3,
        encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config)


BOX = dict(class_labels=torch.tensor([1]), boxes=torch.tensor([[0.5, 0.5, 0.2, 0.3]]))
MODELS = [  # (model, targets)
    (upernet, dict(labels=torch.ones(2, 45, 70, dtype=torch.long))),
    (mask2former, dict(mask_labels=[torch.ones(2, 45, 70)] * 2, class_labels=[torch.tensor([0, 2])] * 2)),
    (detr, dict(labels=[BOX] * 2)),
]


@pytest.mark.parametrize(('make', 'targets'), MODELS)
def test_a_model_of_transformers_trains(adapter, transformers, make, targets):
    model = make(adapter, transformers).eval()
    assert_compiled(lambda: model(X), blocks=8)
    train_a_step(model, lambda model: model(X, **targets).loss)


def test_gradient_checkpointing_enable(adapter):
    model = small(adapter)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert model.backbone.with_cp


@torch.no_grad()
def test_a_folder_of_a_whole_model_and_other_precision(adapter, transformers, tmp_path):
    model = upernet(adapter, transformers).eval()
    model.save_pretrained(tmp_path / 'whole')
    again = transformers.UperNetForSemanticSegmentation.from_pretrained(tmp_path / 'whole')
    assert_equal_maps(again.backbone(X).feature_maps, model.backbone(X).feature_maps)
    torch.testing.assert_close(again(X).logits, model(X).logits)  # convolutions depend on memory alignment
    small(adapter).save_pretrained(tmp_path / 'backbone')
    half = adapter.SwinBackboneModel.from_pretrained(tmp_path / 'backbone', dtype=torch.bfloat16)
    assert half(X.bfloat16()).feature_maps[0].dtype == torch.bfloat16
    assert adapter.SwinBackboneConfig.from_dict(half.config.to_dict()).to_dict() == half.config.to_dict()


def test_trainer_resumes(adapter, transformers, tmp_path):
    """Four steps, or two steps and a resume with two steps, give equal weights."""
    require('accelerate')

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            image = torch.linspace(0, index + 1, 3 * 32 * 48).view(3, 32, 48).sin()
            return dict(pixel_values=image, labels=(image[0] > 0).long())

    def train(folder, steps, resume=None):
        torch.manual_seed(0)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, save_steps=2, report_to=[],
            disable_tqdm=True, use_cpu=True, seed=0, lr_scheduler_type='constant', gradient_checkpointing=False,
        )  # fmt: skip
        trainer = transformers.Trainer(upernet(adapter, transformers), arguments, train_dataset=Pictures())
        result = trainer.train(resume_from_checkpoint=resume)
        assert result.global_step == steps
        return trainer.model.state_dict()

    whole = train(tmp_path / 'whole', 4)
    train(tmp_path / 'parts', 2)
    resumed = train(tmp_path / 'parts', 4, resume=str(tmp_path / 'parts' / 'checkpoint-2'))
    assert (tmp_path / 'parts' / 'checkpoint-4').is_dir()
    for key, value in whole.items():
        torch.testing.assert_close(resumed[key], value, rtol=0, atol=0, msg=key)
