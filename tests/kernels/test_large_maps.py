"""Maps and images of more numbers than 32 bits count.

Inputs and gradients are unwritten memory: the zeros take no memory. The last corner in memory has random numbers. A
small map gives the expected corner.
"""

import mmap
from pathlib import Path

import pytest
import torch
from helpers.versions import needs_torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from swin_backbone import SwinBackbone

BEYOND = 2**31
NORESERVE = 0x4000  # mmap.MAP_NORESERVE, in Python since 3.13
SIDE = 16  # tokens of the corner, in whole windows
SETTINGS = dict(depths=(1, 1), strides=(4, 2), out_indices=(0, 1), in_channels=1, window_size=4, drop_path_rate=0.0)
# Layer, height and width axes of input and output, and the corner's scales of input and output.
BACKENDS = ['native', 'torch']
LAYERS = {
    'embed': (lambda model, x: model.patch_embed(x), (2, 3), (1, 2), 4, 1),
    'block': (lambda model, x: model.stages[0](x, False)[0], (1, 2), (1, 2), 1, 1),
    'merge': (lambda model, x: model.stages[0].downsample(x), (1, 2), (1, 2), 1, 0.5),
    'output': (lambda model, x: model.stages[0].normalise_output(x, model.norm0), (1, 2), (2, 3), 1, 1),
}


def unwritten(shape, dtype):
    """Return zeros without taking memory."""
    size = torch.Size(shape).numel() * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype).view(shape)


def corner(x, axes, side):
    for axis in axes:
        x = x.narrow(axis, x.shape[axis] - int(side), int(side))
    return x


def require_memory(gib):
    (available,) = (line.split()[1] for line in Path('/proc/meminfo').read_text().splitlines() if 'Available' in line)
    if int(available) < gib * 2**20:
        pytest.skip(f'needs {gib} GiB of memory')


def build(backend, channels, mlp_ratio, dtype):
    torch.manual_seed(0)
    sizes = dict(embed_dims=channels, num_heads=(1, 1), mlp_ratio=mlp_ratio)
    model = SwinBackbone(backend=backend, **sizes, **SETTINGS).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def assert_close(found, wanted):
    rounding = 1e-4 if wanted.dtype == torch.float32 else 5e-2
    assert (found - wanted).abs().max() <= rounding * wanted.abs().max()


def check(backend, layer, channels, dtype, backward=True, mlp_ratio=1, beyond=BEYOND):
    """Compare a layer on a large square map of `beyond` numbers with the layer on the corner."""
    model = build(backend, channels, mlp_ratio, dtype)
    run, axes, out_axes, scale, out_scale = LAYERS[layer]
    numbers = 1 if layer == 'embed' else channels  # of a place
    side = int((beyond / numbers) ** 0.5) // SIDE * SIDE + SIDE
    shape = (1, 1, side, side) if layer == 'embed' else (1, side, side, channels)
    x = unwritten(shape, dtype)
    corner(x, axes, SIDE * scale).normal_()
    small = corner(x, axes, SIDE * scale).clone()
    expected = run(model, small.requires_grad_())
    with torch.no_grad():
        y = run(model, x)
        out_shape = y.shape
        assert_close(corner(y, out_axes, SIDE * out_scale), expected)
        del y
    if not backward:
        return
    grad = unwritten(out_shape, dtype)
    corner(grad, out_axes, SIDE * out_scale).normal_()
    of_corner = corner(grad, out_axes, SIDE * out_scale).clone()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanted = torch.autograd.grad(expected, [small, *weights], of_corner, allow_unused=True)
    edge = get_gradient_edge(run(model, x.requires_grad_()))  # without the output
    grads = torch.autograd.grad([edge], [x, *weights], [grad], allow_unused=True)
    assert_close(corner(grads[0], axes, SIDE * scale), wanted[0])
    for found, one in zip(grads[1:], wanted[1:]):
        assert (found is None) == (one is None)
        if one is not None:
            assert_close(found, one)


def maps_and_gradients(model, x):
    x = x.detach().requires_grad_()
    maps = model(x)
    return [*maps, *torch.autograd.grad([y.square().sum() for y in maps], [x, *model.parameters()])]


@pytest.mark.parametrize('backend', BACKENDS)
def test_images_whose_numbers_lie_far_apart(backend):
    """Distances between images, rows or columns of a view are more than 2^31 numbers."""
    model = build(backend, 8, 1, torch.float32)
    memory = unwritten((2**33,), torch.float32)
    for strides in ((2**32, 1, 2**26, 1), (50, 1, 64, 2**26), (0, 1, 2**26, 3)):
        x = memory.as_strided((2, 1, 37, 41), strides)
        x[:1].normal_()
        torch.testing.assert_close(maps_and_gradients(model, x), maps_and_gradients(model, x.contiguous()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('backend', 'layer', 'channels', 'dtype', 'gib'),
    [
        *(('native', layer, 8, torch.float32, 10) for layer in ('embed', 'merge', 'output')),
        ('native', 'block', 16, torch.float32, 10),
        *(('torch', layer, 8, torch.bfloat16, 14) for layer in ('embed', 'merge', 'output')),
        ('torch', 'block', 16, torch.bfloat16, 18),
    ],
)
def test_a_layer_of_more_than_2_to_the_31_numbers(backend, layer, channels, dtype, gib):
    """A case takes 1 to 8 minutes on a core."""
    require_memory(gib)
    check(backend, layer, channels, dtype)


@needs_torch('2.5', 'gradient of a GradientEdge')
@pytest.mark.parametrize('layer', LAYERS)
@pytest.mark.parametrize('backend', BACKENDS)
def test_the_last_corner_of_a_map_is_that_of_a_small_one(backend, layer):
    """Check the assumption of the test above, with all backends."""
    check(backend, layer, 8, torch.float32, beyond=2**14)
