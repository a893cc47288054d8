"""Run the backbones in the real timm, and through timm in segmentation_models_pytorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers.adapters.frameworks import (
    assert_compiled,
    assert_equal_maps,
    require,
    train_a_step,
)
from helpers.checkpoints.origins import ORIGINS, official
from helpers.models.small_models import randomised

from swin_backbone import ARCHS, ARCHS_MLP, ARCHS_V2, SwinBackbone, SwinV2Backbone, load_checkpoint
from swin_backbone.adapters.any_origin import fit_any_origin
from swin_backbone.checkpoints import CheckpointError

pytestmark = [pytest.mark.toolboxes, pytest.mark.peer]
X = torch.linspace(-1, 1, 2 * 3 * 45 * 70).view(2, 3, 45, 70).sin()


@pytest.fixture(scope='module')
def timm():
    module = require('timm')
    import swin_backbone.adapters.timm  # noqa: F401

    return module


def small(timm, name='swin_backbone_nano', **arguments):
    model = timm.create_model(name, drop_path_rate=0.0, **arguments)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def test_every_size_is_listed(timm):
    names = {
        f'{family}_{arch}'.replace('-', '_')
        for family, archs in (('swin_backbone', ARCHS), ('swinv2_backbone', ARCHS_V2), ('swin_mlp_backbone', ARCHS_MLP))
        for arch in archs
    }
    assert set(timm.list_models('swin*_backbone_*')) == names
    assert {'swin_backbone_tiny', 'swin_backbone_large', 'swinv2_backbone_base'} < set(timm.list_pretrained('swin*'))
    assert not {'swin_backbone_nano', 'swin_mlp_backbone_tiny'} & set(timm.list_pretrained('swin*'))


@pytest.mark.parametrize(
    ('asked', 'stages'),
    [((-2, -1), [2, 3]), (2, [2, 3]), ((3, 1), [3, 1])],
)
def test_out_indices_as_timm_counts_them(timm, asked, stages):
    model = small(timm, features_only=True, out_indices=asked)
    assert model.feature_info.out_indices == tuple(stages)
    assert [x.shape[1] for x in model(X)] == [32 << stage for stage in stages] == model.feature_info.channels()
    assert model.feature_info.reduction() == [4 << stage for stage in stages]
    sum(x.sum() for x in model(X)).backward()
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not unused  # DistributedDataParallel waits for gradients of all parameters


def test_arguments(timm):
    model = small(timm, features_only=True, in_chans=5, window_size=4, img_size=512, proj_drop_rate=0.1)
    backbone = model.model.backbone
    assert (backbone.in_channels, backbone.window_size[0], backbone.drop_after_pos.p) == (5, (4, 4), 0.1)
    assert [tuple(x.shape[2:]) for x in model(torch.rand(1, 5, 33, 47))] == [(9, 12), (5, 6), (3, 3), (2, 2)]
    assert small(timm, features_only=True, output_stride=16).feature_info.reduction() == [4, 8, 16, 16]


def test_classifier(timm):
    model = small(timm, num_classes=7)
    logits, last = model(X), model.backbone(X)[-1]
    assert torch.equal(model.forward_features(X), last)
    assert torch.equal(model.get_classifier()(last.mean((2, 3))), logits)
    final, maps = model.forward_intermediates(X)
    assert_equal_maps([final, maps[-1]], [last, last])
    (second,) = model.forward_intermediates(X, indices=[1], stop_early=True, intermediates_only=True)
    assert torch.equal(second, maps[1])
    with pytest.raises(ValueError, match="output_fmt must be 'NCHW', got 'NLC'"):
        model.forward_intermediates(X, output_fmt='NLC')
    for classes, output in ((3, (2, 3)), (0, last.mean((2, 3)).shape)):
        model.reset_classifier(classes)
        assert model(X).shape == output
    model.reset_classifier(0, '')
    assert torch.equal(model(X), last)
    model.set_grad_checkpointing()
    assert model.backbone.with_cp
    model = timm.create_model('swin_backbone_nano', num_classes=5)
    assert train_a_step(model, lambda model: F.cross_entropy(model(X), torch.tensor([1, 4]))) > 0


@torch.no_grad()
def test_checkpoints_of_any_origin(timm, tmp_path):
    """A checkpoint lacks output norms; the model and its copy keep their own. The copy gets weights for itself."""
    source = randomised(output_norms=False)
    torch.save(ORIGINS['hugging_face'][0](source.state_dict()), tmp_path / 'w.pth')
    model = timm.create_model('swin_backbone_nano', features_only=True, checkpoint_path=str(tmp_path / 'w.pth')).eval()
    assert_equal_maps(model(X), source(X))
    other, before = randomised(output_norms=False), model(X)
    twin = copy.deepcopy(model)
    twin.load_state_dict(official(other.state_dict())['model'])
    assert_equal_maps(twin(X), other(X))
    assert_equal_maps(model(X), before)


@torch.no_grad()
def test_a_classifiers_norm_and_head_are_loaded(timm, tmp_path):
    """Compare with timm's own Swin, loaded from the same file."""
    arguments = dict(embed_dim=32, depths=(2, 2, 2, 2), num_heads=(2, 4, 8, 16), num_classes=6)
    theirs = timm.create_model('swin_tiny_patch4_window7_224', **arguments).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.save(theirs.state_dict(), tmp_path / 'theirs.pth')
    x = torch.randn(2, 3, 224, 224)
    for create in (
        dict(checkpoint_path=str(tmp_path / 'theirs.pth')),
        dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(tmp_path / 'theirs.pth'), num_classes=6)),
    ):
        ours = timm.create_model('swin_backbone_nano', num_classes=6, **create).eval()
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_pretrained_for_other_classes_and_channels(timm, tmp_path):
    """The head keeps new weights, like in timm. A grey image gives the maps of an equal colour image."""
    source = small(timm, num_classes=6)
    torch.save(source.state_dict(), tmp_path / 'w.pth')
    overlay = dict(file=str(tmp_path / 'w.pth'), num_classes=6)
    other = timm.create_model(
        'swin_backbone_nano', pretrained=True, pretrained_cfg_overlay=overlay, num_classes=2, in_chans=1
    ).eval()
    grey = torch.rand(1, 1, 64, 64)
    assert other(grey).shape == (1, 2)
    torch.testing.assert_close(other.forward_features(grey), source.forward_features(grey.expand(-1, 3, -1, -1)))


@torch.no_grad()
@pytest.mark.parametrize('path', ['w.pth', None])
def test_features_of_a_classifier_at_another_window(timm, tmp_path, path):
    """A state_dict in memory names its rectangular window. timm keeps the tensors of a file alone."""
    source = small(timm, num_classes=6, window_size=7 if path else (4, 7))
    for parameter in source.parameters():
        parameter.normal_()
    overlay, state = {}, source.state_dict()
    if path:
        torch.save(state, tmp_path / path)
        overlay = dict(file=str(tmp_path / path), num_classes=6)
    features = timm.create_model(
        'swin_backbone_nano',
        features_only=True,
        window_size=(6, 5),
        pretrained=bool(path),
        pretrained_cfg_overlay=overlay,
    )
    if not path:
        features.load_state_dict(fit_any_origin(features, state)[0])
    for name, value in features.model.backbone.state_dict().items():
        if name.startswith('norm'):  # the last norm of a classifier is no output norm
            assert torch.equal(value, torch.full_like(value, name.endswith('weight')))
        elif not name.endswith('bias_table'):
            assert torch.equal(value, state[f'backbone.{name}'])
    name = 'backbone.stages.0.blocks.0.attn.w_msa.relative_position_bias_table'
    middles = [values[len(values) // 2] for values in (features.model.state_dict()[name], state[name])]  # of offset 0
    torch.testing.assert_close(*middles)


def test_a_rectangle_inside_another_module_is_no_guess(timm, tmp_path):
    """Tables of 4x7 and 7x4 have equal shapes, and a hook inside another module gets no sizes of a backbone in it."""
    source = torch.nn.Sequential(small(timm, num_classes=6, window_size=(4, 7)))
    features = torch.nn.Sequential(small(timm, features_only=True, window_size=(7, 4)))
    message = r'0: stages\S+table is for a window or an image size that is not known here: load it by load_checkpoint'
    with pytest.raises(RuntimeError, match=message):
        features.load_state_dict(source.state_dict(), strict=False)
    torch.save(source.state_dict(), tmp_path / 'w.pth')
    resized = load_checkpoint(features, tmp_path / 'w.pth').resized
    assert set(resized.values()) == {'bias tables from window 4x7 to 7x4'}


@pytest.mark.parametrize('strict', [True, False])
def test_a_head_of_another_shape_is_an_error_of_torch(timm, strict):
    state = official(randomised().state_dict())['model']
    with pytest.raises(RuntimeError, match=r'size mismatch for head.fc.weight: .*\(1000, 256\).*\(5, 256\)'):
        small(timm, num_classes=5).load_state_dict(state, strict=strict)


def test_wrong_checkpoints(timm, tmp_path):
    def load(state):
        torch.save(state, tmp_path / 'w.pth')
        timm.create_model('swin_backbone_nano', num_classes=0, checkpoint_path=str(tmp_path / 'w.pth'))

    with pytest.raises(CheckpointError, match='it is a Swin of width 32, depths'):
        load(SwinBackbone(arch='nano', depths=(2, 2, 4, 2)).state_dict())
    with pytest.raises(CheckpointError, match='it holds a Swin V2'):
        load(SwinV2Backbone(arch='nano').state_dict())
    with pytest.raises(RuntimeError, match='Missing key'):
        load({'a': torch.zeros(1)})


def test_layers_for_a_learning_rate_that_decays(timm):
    from timm.models import group_parameters

    model = small(timm, num_classes=3)
    number = group_parameters(model, model.group_matcher(), reverse=True)
    order = model.backbone.layer_order()
    first = [number[next(k for k in number if k.startswith(f'backbone.{names[0]}'))] for names in order]
    assert first == sorted(set(first))
    undecayed = model.no_weight_decay()
    assert undecayed
    assert undecayed <= {name for name, _ in model.named_parameters() if 'bias' in name or 'embed' in name}


def padded(model, x_BCHW):
    """Run a model on a padded image, and crop, like docs/guides/other_toolboxes.md."""
    H, W = x_BCHW.shape[-2:]
    return model(F.pad(x_BCHW, (0, -W % 32, 0, -H % 32)))[..., :H, :W]


@pytest.mark.parametrize('name', ['Unet', 'FPN', 'DeepLabV3Plus', 'UPerNet'])
def test_segmentation_models(timm, name):
    smp = require('segmentation_models_pytorch')
    model = getattr(smp, name)('tu-swin_backbone_nano', encoder_weights=None, in_channels=3, classes=4).eval()
    with torch.no_grad():
        assert_equal_maps(model.encoder(X)[2:], model.encoder.model.model.backbone(X))
    assert_compiled(lambda: padded(model, X), blocks=8)
    assert padded(model, X).shape == (2, 4, 45, 70)
    if name == 'Unet':
        assert model(X).shape == (2, 4, 45, 70)  # Unet needs no padding
    labels = torch.randint(4, (2, 45, 70))
    assert train_a_step(model, lambda model: F.cross_entropy(padded(model, X), labels)) > 0
