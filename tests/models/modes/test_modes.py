"""AMP, torch.compile and export: counted, not timed."""

import pytest
import torch
from helpers.backends.errors import relative_error
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone

WINDOW_AREA = 49
TWO_STAGES = dict(depths=(2, 2), num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1))


class AttentionDtypes(TorchDispatchMode):
    """Record the dtypes of attention matrices (..., N, N) of many windows, and of fused attention's inputs."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if 'scaled_dot_product' in name:
            self.dtypes.add(args[0].dtype)
        for tensor in result if isinstance(result, tuple) else (result,):
            many = isinstance(tensor, torch.Tensor) and tensor.ndim >= 3 and tensor.shape[-2:] == (WINDOW_AREA,) * 2
            if many and tensor.is_floating_point() and tensor.numel() > 16 * WINDOW_AREA**2:
                self.dtypes.add(tensor.dtype)
        return result


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_makes_no_float32_detour_in_attention(dtype, training):
    backbone = SwinBackbone(arch='nano', backend='torch', out_indices=(0,), depths=(2,), num_heads=(2,)).train(training)
    seen = AttentionDtypes()
    with torch.autocast('cpu', dtype), torch.set_grad_enabled(training), seen:
        (output,) = backbone(torch.randn(1, 3, 160, 160))
        if training:
            output.float().sum().backward()
    assert seen.dtypes == {dtype}


@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.bfloat16, 2e-2), (torch.float16, 2.5e-3)])
def test_autocast_is_near_float32(dtype, tolerance):
    backbone = SwinBackbone(arch='nano').eval()
    x = torch.randn(1, 3, 100, 130)
    with torch.no_grad():
        expected = backbone(x)
        with torch.autocast('cpu', dtype):
            outputs = backbone(x)
    for output, reference in zip(outputs, expected):
        assert relative_error([output], [reference]) < tolerance


def test_frozen_stages_have_no_gradient_while_the_rest_trains():
    backbone = SwinBackbone(arch='nano', frozen_stages=2).train()
    outputs = backbone(torch.randn(1, 3, 90, 90))
    assert [output.requires_grad for output in outputs] == [False, False, True, True]


@pytest.mark.parametrize('arch', [TWO_STAGES, pytest.param({}, marks=pytest.mark.slow)])
@pytest.mark.parametrize('grad', [False, True])
def test_compiles_without_a_graph_break(grad, arch):
    backbone = SwinBackbone(arch='nano', drop_path_rate=0.0, **arch).eval()
    compiled = torch.compile(backbone, fullgraph=True, backend='aot_eager')
    x = torch.randn(2, 3, 40, 90)
    with torch.set_grad_enabled(grad):
        outputs, expected = compiled(x), backbone(x)
    for output, reference in zip(outputs, expected):
        torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
    if grad:
        parameters = list(backbone.parameters())
        gradients = [
            torch.autograd.grad(sum(o.square().mean() for o in maps), parameters) for maps in (outputs, expected)
        ]
        for gradient, reference in zip(*gradients):
            torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-5)
    torch._dynamo.reset()


TEN_SIZES = [
    (64, 80),
    (58, 150),
    (75, 58),
    (120, 120),
    (63, 63),
    (83, 125),
    (80, 57),
    (100, 175),
    (74, 74),
    (67, 75),
]


@pytest.mark.parametrize(('arch', 'times'), [(TWO_STAGES, 1), pytest.param({}, 4, marks=pytest.mark.slow)])
def test_ten_sizes_are_one_compilation(arch, times):
    """At all sizes, the last stage has at least two windows a side. A single window needs a second graph."""
    backbone = SwinBackbone(arch='nano', **arch).eval()
    counter = CompileCounter()
    compiled = torch.compile(backbone, fullgraph=True, dynamic=True, backend=counter)
    with torch.no_grad():
        for height, width in TEN_SIZES:
            x = torch.randn(1, 3, times * height, times * width)
            for output, reference in zip(compiled(x), backbone(x)):
                torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize('arch', [TWO_STAGES, pytest.param({}, marks=pytest.mark.slow)])
def test_exports(arch):
    backbone = SwinBackbone(arch='nano', **arch).eval()
    x = torch.randn(1, 3, 40, 90)
    exported = torch.export.export(backbone, (x,))
    for output, reference in zip(exported.module()(x), backbone(x)):
        torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('cls', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
def test_traces_before_anything_was_computed(cls):
    """Tables from the first forward must not change later graphs: torch compares two graphs."""
    backbone = cls(arch='nano', window_size=5).eval()  # no test before has size 5: the tables are not cached yet
    x = torch.randn(1, 3, 60, 97)
    with torch.no_grad():
        traced = torch.jit.trace(backbone, x)
        for output, reference in zip(traced(x), backbone(x)):
            torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
