"""Exchange checkpoints with the code of the origins, in both directions, and compare the outputs.

`pip install -e .[peers]` installs the origins. Every test compares all four stages. Most inputs are no multiple of the
window. timm is wrong for odd inputs, so timm gets a multiple.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, convert_checkpoint, load_checkpoint
from swin_backbone.checkpoints import read_checkpoint
from swin_backbone.compat import import_torchvision
from swin_backbone.openmmlab.swap.variants import SWINS

pytestmark = pytest.mark.peer

MISSING = "{} is not installed: pip install -e '.[peers]'"
slow = pytest.mark.slow
DEPTHS, HEADS, WIDTH = (2, 2, 2, 2), (2, 4, 8, 16), 32
ODD = (235, 310)  # maps of 59x78, 30x39, 15x20 and 8x10: larger than the window, no side a multiple of the window


@pytest.fixture(autouse=True, scope='module')
def _torchvision_on_a_cpu():
    import_torchvision()  # before timm


def with_random_weights(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def normalised(outputs):
    """Apply a norm with weight 1 and bias 0. The backbone has output norms; the origin has no output norms."""
    return [F.layer_norm(x_BHWC, x_BHWC.shape[-1:]).permute(0, 3, 1, 2) for x_BHWC in outputs]


def assert_equal(outputs, expected):
    assert len(outputs) == len(expected) == 4
    for output, other in zip(outputs, expected):
        torch.testing.assert_close(output, other, rtol=1e-4, atol=1e-4)


def saved(model, path):
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope='module')
def torchvision():
    return pytest.importorskip('torchvision.models.swin_transformer', reason=MISSING.format('torchvision'))


@pytest.fixture(scope='module')
def timm():
    return pytest.importorskip('timm', reason=MISSING.format('timm'))


@pytest.fixture(scope='module')
def transformers():
    return pytest.importorskip('transformers', reason=MISSING.format('transformers'))


@pytest.mark.parametrize('features_only', [False, True])
@pytest.mark.parametrize('fused', [False, True])
@torch.no_grad()
def test_timm(tmp_path, timm, fused, features_only):
    from timm.layers import set_fused_attn

    set_fused_attn(fused)  # changes no parameters
    try:
        arguments = dict(embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS)
        model = with_random_weights(timm.create_model('swin_tiny_patch4_window7_224', **arguments))
    finally:
        set_fused_attn(True)
    x = torch.randn(2, 3, 224, 224)  # timm shifts before padding. On uneven sizes, tokens of far edges meet.
    expected, y_BHWC = [], model.patch_embed(x)
    for layer in model.layers:
        y_BHWC = layer(y_BHWC)
        expected.append(y_BHWC)
    if features_only:
        weights = timm.create_model('swin_tiny_patch4_window7_224', features_only=True, **arguments)
        weights.load_state_dict({k.replace('layers.', 'layers_', 1): v for k, v in model.state_dict().items()}, False)
        model = weights
    backbone = SwinBackbone(arch='nano', window_size=7, small_map='shrink').eval()
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert report.origin == 'timm'
    assert_equal(backbone(x), normalised(expected))


S3 = [
    pytest.param('swin_s3_tiny_224', SWINS['swin-s3-t'], id='S3-T'),
    pytest.param('swin_s3_small_224', SWINS['swin-s3-s'], id='S3-S', marks=slow),
    pytest.param('swin_s3_base_224', SWINS['swin-s3-b'], id='S3-B', marks=slow),
]


@pytest.mark.parametrize(('name', 'swin'), S3)
@torch.no_grad()
def test_timm_windows_by_stage(tmp_path, timm, name, swin):
    model = timm.create_model(name).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    x = torch.randn(1, 3, 224, 224)
    expected, y_BHWC = [], model.patch_embed(x)
    for layer in model.layers:
        y_BHWC = layer(y_BHWC)
        expected.append(y_BHWC)
    backbone = SwinBackbone(arch=swin.arch, **dict(swin.by_stage), small_map='shrink').eval()
    report = load_checkpoint(backbone, saved(model, tmp_path / 'timm.pth'))
    assert not report.resized
    assert_equal(backbone(x), normalised(expected))


@torch.no_grad()
def test_timm_loads_what_is_written_for_it(tmp_path, timm):
    arguments = dict(embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS)
    model = with_random_weights(timm.create_model('swin_tiny_patch4_window7_224', **arguments))
    convert_checkpoint(saved(model, tmp_path / 'timm.pth'), tmp_path / 'official.pth', 'official')
    convert_checkpoint(tmp_path / 'official.pth', tmp_path / 'back.pth', 'timm')
    fresh = timm.create_model('swin_tiny_patch4_window7_224', checkpoint_path=str(tmp_path / 'back.pth'), **arguments)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh.state_dict().items())
    # timm's own conversion of the official format checks the order of merging.
    fresh = timm.create_model('swin_tiny_patch4_window7_224', **arguments)
    filtered = timm.models.swin_transformer.checkpoint_filter_fn(read_checkpoint(tmp_path / 'official.pth'), fresh)
    fresh.load_state_dict(filtered, strict=False)
    x = torch.randn(1, 3, 224, 224)
    assert torch.equal(fresh.eval().forward_features(x), model.forward_features(x))


def torchvision_model(module):
    model = module.SwinTransformer([4, 4], WIDTH, list(DEPTHS), list(HEADS), [7, 7])
    return with_random_weights(model)


@torch.no_grad()
def test_torchvision(tmp_path, torchvision):
    model = torchvision_model(torchvision)
    backbone = SwinBackbone(arch='nano').eval()
    report = load_checkpoint(backbone, saved(model, tmp_path / 'torchvision.pth'))
    assert report.origin == 'torchvision'
    x = torch.randn(2, 3, ODD[0] // 4 * 4, ODD[1] // 4 * 4)  # torchvision drops partial patches
    expected, y_BHWC = [], x
    for index, layer in enumerate(model.features):
        y_BHWC = layer(y_BHWC)
        if index % 2:
            expected.append(y_BHWC)
    assert_equal(backbone(x), normalised(expected))


def test_torchvision_loads_what_is_written_for_it(tmp_path, torchvision):
    model = torchvision_model(torchvision)
    convert_checkpoint(saved(model, tmp_path / 'torchvision.pth'), tmp_path / 'mmdet.pth', 'mmdet')
    convert_checkpoint(tmp_path / 'mmdet.pth', tmp_path / 'back.pth', 'torchvision')
    fresh = torchvision_model(torchvision)
    fresh.load_state_dict(torch.load(tmp_path / 'back.pth', weights_only=True), strict=True)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh.state_dict().items())


def hugging_face_config(transformers):
    stages = [f'stage{number}' for number in (1, 2, 3, 4)]
    return transformers.SwinConfig(embed_dim=WIDTH, depths=DEPTHS, num_heads=HEADS, out_features=stages)


@pytest.mark.parametrize('how', ['in memory', 'files'])
@torch.no_grad()
def test_transformers(tmp_path, transformers, how):
    model = with_random_weights(transformers.SwinBackbone(hugging_face_config(transformers)))
    if how == 'files':
        model.save_pretrained(tmp_path)
        path = tmp_path / 'model.safetensors'
    else:
        path = saved(model, tmp_path / 'model.pth')
    backbone = SwinBackbone(arch='nano').eval()
    report = load_checkpoint(backbone, path)
    assert report.origin == 'Hugging Face'
    assert not report.missing  # the Hugging Face backbone has output norms
    x = torch.randn(2, 3, *ODD)
    assert_equal(backbone(x), model(x).feature_maps)


@torch.no_grad()
def test_transformers_loads_what_is_written_for_it(tmp_path, transformers):
    source = randomised()
    torch.save({'state_dict': source.state_dict()}, tmp_path / 'source.pth')
    config = hugging_face_config(transformers)
    config.save_pretrained(tmp_path / 'hf')
    convert_checkpoint(tmp_path / 'source.pth', tmp_path / 'hf' / 'model.safetensors', 'hf')
    model = transformers.SwinBackbone.from_pretrained(tmp_path / 'hf').eval()
    x = torch.randn(2, 3, *ODD)
    assert_equal(model(x).feature_maps, source(x))


def test_transformers_classifier_goes_there_and_back(tmp_path, transformers):
    config = hugging_face_config(transformers)
    model = with_random_weights(transformers.SwinForImageClassification(config))
    model.save_pretrained(tmp_path)
    convert_checkpoint(tmp_path / 'model.safetensors', tmp_path / 'timm.pth', 'timm')
    convert_checkpoint(tmp_path / 'timm.pth', tmp_path / 'model.safetensors', 'hf', overwrite=True)
    fresh = transformers.SwinForImageClassification.from_pretrained(tmp_path)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh.state_dict().items())
