"""SwinBackbone against mmdet's SwinTransformer with equal weights."""

import pytest
import torch

from swin_backbone import SwinBackbone
from swin_backbone.archs import ARCHS

pytestmark = pytest.mark.peer
mmdet_swin = pytest.importorskip('mmdet.models.backbones.swin', reason='mmdet is not installed')

SIZES = [(1, 1), (33, 47), (255, 255), (112, 137), (224, 224), (7, 400), (130, 64)]
FEW = [(33, 47), (112, 137)]
OF_COCO = (800, 1333)


def make_pair(arch, **arguments):
    """Return mmdet's backbone and our backbone with equal weights, all parameters away from the initialisation."""
    embed_dims, depths, num_heads = ARCHS[arch]
    torch.manual_seed(0)
    peer = mmdet_swin.SwinTransformer(embed_dims=embed_dims, depths=depths, num_heads=num_heads, **arguments)
    for name, parameter in peer.named_parameters():
        spread = {'bias': 0.1, 'relative_position_bias_table': 0.5}.get(name.rpartition('.')[2], 0.03)
        torch.nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=spread)
    ours = SwinBackbone(arch=arch, **arguments)
    ours.load_state_dict(peer.state_dict(), strict=True)
    peer.train(False)
    return peer, ours.eval()


@pytest.mark.parametrize(
    ('arch', 'sizes'),
    [
        ('tiny', SIZES),
        ('nano', [OF_COCO]),
        pytest.param('small', FEW, marks=pytest.mark.slow),
        pytest.param('base', FEW, marks=pytest.mark.slow),
        pytest.param('large', [*SIZES, OF_COCO], marks=pytest.mark.slow),  # mmdet's takes 6 GB
    ],
)
def test_outputs_equal_mmdets(arch, sizes):
    peer, ours = make_pair(arch)
    for size in sizes:
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            for expected, output in zip(peer(x), ours(x)):
                assert (expected - output).abs().max() < 1e-4, size


@pytest.mark.parametrize(
    ('arch', 'sizes'),
    [
        ('tiny', FEW),
        pytest.param('base', FEW[:1], marks=pytest.mark.slow),
        pytest.param('large', FEW, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_every_parameter_equal_mmdets(arch, sizes):
    peer, ours = make_pair(arch)
    for size in sizes:
        x = torch.randn(2, 3, *size)
        gradients = []
        for model in (peer, ours):
            outputs = model(x)
            names, parameters = zip(*sorted(model.named_parameters()))
            loss = sum((output * output.detach().sin()).mean() for output in outputs)
            gradients.append(torch.autograd.grad(loss, parameters))
        for name, expected, gradient in zip(names, *gradients):
            assert (expected - gradient).abs().max() < 1e-4 * max(1.0, expected.abs().max()), name


OPTIONS = dict(
    window_size=5, mlp_ratio=2, qkv_bias=False, qk_scale=0.2, patch_norm=False, out_indices=(1, 2), in_channels=4,
    use_abs_pos_embed=True, pretrain_img_size=64,
)  # fmt: skip


@pytest.mark.parametrize(
    ('options', 'shape'),
    [
        (OPTIONS, (2, 4, 64, 64)),  # mmdet's absolute embedding takes the size of pre-training alone
        (dict(patch_size=2, strides=(2, 2, 1, 3)), (1, 3, 45, 62)),
    ],
)
def test_options_mean_what_they_mean_in_mmdet(options, shape):
    peer, ours = make_pair('tiny', **options)
    x = torch.randn(shape)
    for expected, output in zip(peer(x), ours(x)):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


def test_the_way_back_misses_only_index_tables():
    peer, ours = make_pair('tiny')
    result = peer.load_state_dict(ours.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(key.endswith('relative_position_index') for key in result.missing_keys)


def test_every_argument_of_mmdets_is_accepted():
    import inspect

    theirs = inspect.signature(mmdet_swin.SwinTransformer).parameters
    ours = inspect.signature(SwinBackbone).parameters
    assert list(theirs) == list(ours)[: len(theirs)]
    for name, parameter in theirs.items():
        if name not in ('embed_dims', 'depths', 'num_heads'):  # defaults come from arch
            assert parameter.default == ours[name].default, name
    assert SwinBackbone().num_features == [96, 192, 384, 768]
