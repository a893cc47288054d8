"""SwinBackbone and SwinV2Backbone against mmpretrain's backbones, with equal weights and equal names."""

import pytest
import torch

from benchmarks.peers import build_peer, largest_difference
from swin_backbone import ARCHS, SwinBackbone, SwinV2Backbone
from swin_backbone.kernels.native.library import load_library

pytestmark = [pytest.mark.peer, pytest.mark.toolboxes]

# mmpretrain's patch embedding drops the rest of a picture after whole 4x4 patches. Our patch embedding pads the rest.
# All sizes are whole patches.
SIZES = [(32, 32), (36, 48), (112, 136), (224, 224), (8, 400)]
WINDOW = {1: 7, 2: 8}


@pytest.fixture(autouse=True, scope='module')
def mmpretrain():
    return pytest.importorskip('mmpretrain', reason='mmpretrain is not installed: make install EXTRAS=cls')


def make_pair(version, small_map):
    """Return mmpretrain's backbone and our backbone, every parameter away from the initialisation."""
    from mmpretrain.models import SwinTransformer, SwinTransformerV2

    arguments = dict(out_indices=(0, 1, 2, 3), drop_path_rate=0.0, pad_small_map=small_map == 'pad')
    sizes = ARCHS['nano']._asdict()
    if version == 1:
        peer, ours = SwinTransformer(sizes, **arguments), SwinBackbone(arch='nano', small_map=small_map)
    else:
        sizes['extra_norm_every_n_blocks'] = 0
        peer = SwinTransformerV2(sizes, window_size=WINDOW[2], **arguments)
        ours = SwinV2Backbone(arch='nano', small_map=small_map)
    for name, parameter in peer.named_parameters():
        if 'logit_scale' in name:
            torch.nn.init.uniform_(parameter, 0, 3)  # mmpretrain's mask is -100, too little for larger scales
        else:
            torch.nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=0.1)
    theirs = peer.state_dict()
    ours.load_state_dict({key: theirs[key] for key in ours.state_dict()}, strict=True)
    assert {name for name, _ in peer.named_parameters()} == {name for name, _ in ours.named_parameters()}
    peer.double().train(False)  # `train` returns None
    return peer, ours.double().eval()  # V2's logits are large: float32's rounding would show


@pytest.mark.parametrize('version', [1, 2])
@pytest.mark.parametrize('small_map', ['pad', 'shrink'])
def test_outputs_and_gradients_equal_mmpretrains(version, small_map):
    peer, ours = make_pair(version, small_map)
    # mmpretrain's windows do not shrink. On a map of the window's size, windows are not shifted.
    sizes = SIZES if small_map == 'pad' else [(32 * WINDOW[version],) * 2]
    for size in sizes:
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            for expected, output in zip(peer(x), ours(x)):
                assert (expected - output).abs().max() < 1e-6, size
    x = torch.randn(1, 3, *sizes[-1], dtype=torch.float64)
    gradients = []
    for model in (peer, ours):
        names, parameters = zip(*sorted(model.named_parameters()))
        loss = sum((output * output.detach().sin()).mean() for output in model(x))
        gradients.append(torch.autograd.grad(loss, parameters))
    for name, expected, gradient in zip(names, *gradients):
        assert (expected - gradient).abs().max() < 1e-6 * max(1.0, expected.abs().max()), name


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
def test_the_peer_of_the_benchmark_has_the_same_outputs(kind):
    ours = kind(arch='nano', drop_path_rate=0.0).eval()
    peer = build_peer('mmpretrain', 'nano', ours).eval()
    assert largest_difference(ours, peer, torch.randn(1, 3, 96, 128)) < 1e-4


@pytest.mark.parametrize('backend', ['native', 'torch'])
@pytest.mark.parametrize('version', [1, 2])
def test_ten_steps_of_training_have_mmpretrains_losses(version, backend):
    if backend == 'native' and load_library()[0] is None:
        pytest.skip(load_library()[1])
    torch.manual_seed(0)
    kind = SwinBackbone if version == 1 else SwinV2Backbone
    # mmpretrain's V2 drops branches before the norm. The norm cancels the factor of kept branches.
    rate = 0.2 if version == 1 else 0.0
    ours = kind(arch='nano', drop_path_rate=rate, backend=backend)
    ours.init_weights()
    theirs = build_peer('mmpretrain', 'nano', ours, drop_path_rate=rate)
    results = [losses_of_training(model) for model in (theirs, ours)]
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert results[0][-1] < 0.95 * results[0][0]


def losses_of_training(model):
    """Return the losses of ten steps of SGD. The steps make the four maps similar to drawn maps."""
    torch.manual_seed(1)  # of drop path
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(10):
        maps = model(torch.randn(2, 3, 96, 128, generator=generator))
        targets = [torch.randn(y.shape, generator=generator).sign() for y in maps]
        loss = sum((y - target.mean(0)).square().mean() for y, target in zip(maps, targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
