"""Exchange checkpoints with the code of the origins, in both directions, and compare the outputs in float64.

`pip install -e .[peers]` installs the origins. Every test compares all four stages. timm shifts before padding: on
uneven inputs, tokens of far edges meet in timm, so timm gets multiples of the window. `test_hugging_face_folder.py`
writes files for transformers.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers.adapters.frameworks import require
from helpers.models.small_v2_models import nano as nano_v2
from helpers.models.small_v2_models import saved, with_random_weights

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import read_checkpoint
from swin_backbone.openmmlab.swap.variants import SWINS

pytestmark = pytest.mark.peer

slow = pytest.mark.slow
SMALL = dict(embed_dim=32, depths=(2, 2, 2, 2), num_heads=(2, 4, 8, 16))
STAGES = [f'stage{number}' for number in (1, 2, 3, 4)]
V2_WINDOWS = [(8, (0, 0, 0, 0)), (16, (12, 12, 12, 6))]  # with 16, maps of later stages are smaller than the window


@pytest.fixture(scope='module')
def timm():
    return require('timm')


@pytest.fixture(scope='module')
def transformers():
    return require('transformers')


def nano(**arguments):
    return SwinBackbone(arch='nano', **arguments).double().eval()


def normalised(outputs):
    """Apply a norm with weight 1 and bias 0. The backbone has output norms; the origin has no output norms."""
    return [F.layer_norm(x_BHWC, x_BHWC.shape[-1:]).permute(0, 3, 1, 2) for x_BHWC in outputs]


def outputs_of(layers, y_BHWC):
    """Return the normalised outputs of stages."""
    outputs = []
    for layer in layers:
        y_BHWC = layer(y_BHWC)
        outputs.append(y_BHWC)
    return normalised(outputs)


def images(height, width=None):
    return torch.randn(2, 3, height, width or height, dtype=torch.float64)


def assert_equal(backbone, x, expected):
    outputs = backbone(x)
    assert len(outputs) == len(expected) == 4
    for output, other in zip(outputs, expected):
        torch.testing.assert_close(output, other, rtol=1e-5, atol=1e-5)


def timm_v1(timm):
    return with_random_weights(timm.create_model('swin_tiny_patch4_window7_224', **SMALL))


def timm_v2(timm, window=8, pretrained=(0, 0, 0, 0)):
    model = timm.models.swin_transformer_v2.SwinTransformerV2
    return with_random_weights(
        model(img_size=128, window_size=window, pretrained_window_sizes=pretrained, **SMALL)
    )  # fmt: skip


@pytest.mark.parametrize('features_only', [False, True])
@torch.no_grad()
def test_timm(tmp_path, timm, features_only):
    model, x = timm_v1(timm), images(224)
    expected = outputs_of(model.layers, model.patch_embed(x))
    if features_only:
        features = timm.create_model('swin_tiny_patch4_window7_224', features_only=True, **SMALL).double()
        features.load_state_dict({k.replace('layers.', 'layers_', 1): v for k, v in model.state_dict().items()}, False)
        model = features
    backbone = nano(small_map='shrink')
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert report.origin == 'timm'
    assert_equal(backbone, x, expected)


S3 = [
    pytest.param('swin_s3_tiny_224', SWINS['swin-s3-t'], id='S3-T'),
    pytest.param('swin_s3_small_224', SWINS['swin-s3-s'], id='S3-S', marks=slow),
    pytest.param('swin_s3_base_224', SWINS['swin-s3-b'], id='S3-B', marks=slow),
]


@pytest.mark.parametrize(('name', 'swin'), S3)
@torch.no_grad()
def test_timm_windows_by_stage(tmp_path, timm, name, swin):
    model, x = with_random_weights(timm.create_model(name)), images(224)
    backbone = SwinBackbone(arch=swin.arch, **dict(swin.by_stage), small_map='shrink').double().eval()
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert not report.resized
    assert_equal(backbone, x, outputs_of(model.layers, model.patch_embed(x)))


@pytest.mark.parametrize(('window', 'pretrained'), V2_WINDOWS)
@torch.no_grad()
def test_timm_v2(tmp_path, timm, window, pretrained):
    model, x = timm_v2(timm, window, pretrained), images(128)
    backbone = nano_v2(window_size=window, pretrained_window_sizes=pretrained)
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert report.origin == 'timm, Swin V2'
    assert all(name.startswith('norm') for name in report.missing)
    assert_equal(backbone, x, outputs_of(model.layers, model.patch_embed(x)))


@pytest.mark.parametrize('make', [timm_v1, timm_v2])
@torch.no_grad()
def test_timm_loads_what_is_written_for_it(tmp_path, timm, make):
    """timm's own conversion of the official format checks the names and the order of merging."""
    model = make(timm)
    convert_checkpoint(saved(model, tmp_path / 'timm.pth'), tmp_path / 'official.pth', 'official')
    convert_checkpoint(tmp_path / 'official.pth', tmp_path / 'back.pth', 'timm')
    module = timm.models.swin_transformer if make is timm_v1 else timm.models.swin_transformer_v2
    by_timm = module.checkpoint_filter_fn(read_checkpoint(tmp_path / 'official.pth'), model)
    for weights in (torch.load(tmp_path / 'back.pth'), by_timm):
        assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


@torch.no_grad()
def test_torchvision(tmp_path):
    require('torchvision')
    from torchvision.models.swin_transformer import SwinTransformer

    model = with_random_weights(SwinTransformer([4, 4], *SMALL.values(), [7, 7]))
    backbone, x = nano(), images(236, 312)  # maps of 59x78, 30x39, 15x20, 8x10. torchvision drops partial patches
    report = load_checkpoint(backbone, saved(model, tmp_path / 'torchvision.pth'))
    assert report.origin == 'torchvision'
    layers = model.features
    stages = [torch.nn.Sequential(*layers[index - 1 : index + 1]) for index in (3, 5, 7)]
    assert_equal(backbone, x, outputs_of([layers[:2], *stages], x))
    convert_checkpoint(tmp_path / 'torchvision.pth', tmp_path / 'mmdet.pth', 'mmdet')
    convert_checkpoint(tmp_path / 'mmdet.pth', tmp_path / 'back.pth', 'torchvision')
    SwinTransformer([4, 4], *SMALL.values(), [7, 7]).load_state_dict(torch.load(tmp_path / 'back.pth'), strict=True)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in torch.load(tmp_path / 'back.pth').items())


@pytest.mark.parametrize('window', [8, 6])
@torch.no_grad()
def test_torchvision_v2(tmp_path, window):
    require('torchvision')
    from torchvision.models import swin_transformer

    kinds = dict(block=swin_transformer.SwinTransformerBlockV2, downsample_layer=swin_transformer.PatchMergingV2)
    model = with_random_weights(swin_transformer.SwinTransformer([4, 4], *SMALL.values(), [window] * 2, **kinds))
    backbone, x = nano_v2(window_size=window), images(300, 404)
    report = load_checkpoint(backbone, saved(model, tmp_path / 'torchvision.pth'))
    assert report.origin == 'torchvision, Swin V2'
    layers = model.features
    stages = [torch.nn.Sequential(*layers[index - 1 : index + 1]) for index in (3, 5, 7)]
    assert_equal(backbone, x, outputs_of([layers[:2], *stages], x))
    convert_checkpoint(tmp_path / 'torchvision.pth', tmp_path / 'mmdet.pth', 'mmdet')
    convert_checkpoint(tmp_path / 'torchvision.pth', tmp_path / 'back.pth', 'torchvision')
    back = swin_transformer.SwinTransformer([4, 4], *SMALL.values(), [window] * 2, **kinds).double().eval()
    back.load_state_dict(torch.load(tmp_path / 'back.pth'), strict=True)
    torch.testing.assert_close(back(x), model(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_maskformer(tmp_path, transformers):
    """The norms of the outputs are beside the model that has the backbone."""
    from transformers.models.maskformer import configuration_maskformer_swin, modeling_maskformer_swin

    config = configuration_maskformer_swin.MaskFormerSwinConfig(out_features=STAGES, **SMALL)
    model = with_random_weights(modeling_maskformer_swin.MaskFormerSwinBackbone(config))
    backbone, x = nano(), images(235, 310)
    report = load_checkpoint(backbone, saved(model, tmp_path / 'model.pth'))
    assert not report.missing
    assert_equal(backbone, x, model(x).feature_maps)


@torch.no_grad()
def test_transformers_in_memory(tmp_path, transformers):
    model = transformers.SwinBackbone(transformers.SwinConfig(out_features=STAGES, **SMALL))
    model, backbone, x = with_random_weights(model), nano(), images(235, 310)
    report = load_checkpoint(backbone, saved(model, tmp_path / 'model.pth'))
    assert report.origin == 'Hugging Face'
    assert not report.missing  # the Hugging Face backbone has output norms
    assert_equal(backbone, x, model(x).feature_maps)


@pytest.mark.parametrize(('window', 'pretrained'), V2_WINDOWS)
@torch.no_grad()
def test_transformers_v2(tmp_path, transformers, window, pretrained):
    config = transformers.Swinv2Config(
        image_size=128, window_size=window, out_features=STAGES, pretrained_window_sizes=pretrained, **SMALL
    )
    model, x = with_random_weights(transformers.Swinv2Backbone(config)), images(128)
    model.save_pretrained(tmp_path)
    backbone = nano_v2(window_size=window, pretrained_window_sizes=pretrained)
    report = load_checkpoint(backbone, tmp_path / 'model.safetensors')
    assert report.origin == 'Hugging Face, Swin V2'
    assert_equal(backbone, x, normalised([x.permute(0, 2, 3, 1) for x in model(x).feature_maps]))


@pytest.mark.parametrize('fault', [True, False])
@torch.no_grad()
def test_the_far_edge_reaches_the_near_one_in_timm_and_not_here(timm, fault):
    """Run a shifted block on a 14x14 map with windows of 8. timm pads after the roll."""
    block = (timm_v2(timm).layers[0] if fault else nano_v2().stages[0]).blocks[1]
    with_random_weights(block)
    x_BHWC = torch.randn(1, 14, 14, 32, dtype=torch.float64)
    changed = x_BHWC.clone()
    changed[:, -1, -1] += 1.0
    if fault:  # compute the mask for this map size
        block.dynamic_mask = True
    reached = (block(changed) - block(x_BHWC)).abs().sum(-1)[0, :4, :4].max()
    assert (reached > 1e-6) == fault
