"""AMP, torch.compile and export: counted, not timed."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from helpers.kernels import refusal
from helpers.kernels.errors import relative_error
from helpers.models.small_models import TWO_STAGES, randomised
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.replace import CannotRun

KINDS = [SwinBackbone, SwinV2Backbone, SwinMLPBackbone]
WINDOW_AREA = 49
CPU_AUTOCAST = [torch.bfloat16, torch.float16]


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
@pytest.mark.parametrize('dtype', CPU_AUTOCAST)
def test_autocast_makes_no_float32_detour_in_attention(dtype, training):
    backbone = SwinBackbone(arch='nano', backend='torch', out_indices=(0,), depths=(2,), num_heads=(2,)).train(training)
    seen = AttentionDtypes()
    with torch.autocast('cpu', dtype), torch.set_grad_enabled(training), seen:
        (output,) = backbone(torch.randn(1, 3, 160, 160))
        if training:
            output.float().sum().backward()
    assert seen.dtypes == {dtype}


@pytest.mark.parametrize('autocast', [None, *CPU_AUTOCAST])
@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_dtypes_of_weights_and_images(kind, autocast):
    """An image has the dtype of the weights; under autocast it has any floating dtype. Else torch's error is raised."""
    floating = torch.float64, torch.float32, torch.bfloat16, torch.float16
    has_library = kind is not SwinMLPBackbone and refusal(autocast or torch.float32) is None
    model, image = kind(**TWO_STAGES, embed_dims=32), torch.ones(1, 3, 20, 24)
    for of_weights, of_image in product(floating, (*floating, torch.uint8, torch.complex64)):
        runs = of_image == of_weights
        if autocast is not None:
            runs = of_image.is_floating_point and of_weights in (torch.float32, autocast)
        by_library = runs and has_library and of_weights is torch.float32
        for backend, expected in (('auto', runs), ('torch', runs), ('native', by_library)):
            model.to(of_weights).backend = backend
            error = nullcontext() if expected else pytest.raises((RuntimeError, CannotRun))
            with torch.autocast('cpu', autocast, enabled=autocast is not None), error:
                assert all(y.isfinite().all() and y.is_floating_point() for y in model(image.to(of_image)))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.bfloat16, 2e-2), (torch.float16, 2.5e-3)])
@torch.no_grad()
def test_half_precision_is_near_float32(kind, dtype, tolerance):
    backbone, x = kind(arch='nano').eval(), torch.randn(1, 3, 100, 130)
    expected = backbone(x)
    with torch.autocast('cpu', dtype):
        outputs = backbone(x)
    assert max(relative_error([a], [b]) for a, b in zip(outputs, expected)) < tolerance
    outputs = backbone.to(dtype)(x.to(dtype))
    assert {output.dtype for output in outputs} == {dtype}
    assert max(relative_error([a], [b]) for a, b in zip(outputs, expected)) < 2 * tolerance


@pytest.mark.parametrize('with_cp', [False, True])
def test_nothing_of_swin_v2_overflows_in_float16(with_cp):
    """Squares of queries and keys overflow float16.

    The scale is the largest. Maps have padding, in forward and backward.
    """
    backbone = randomised(kind=SwinV2Backbone, with_cp=with_cp).train()
    for attention in (block.attn.w_msa for stage in backbone.stages for block in stage.blocks):
        torch.nn.init.normal_(attention.qkv.weight[: 2 * attention.qkv.in_features].data, std=300.0)
        torch.nn.init.constant_(attention.logit_scale, 9.0)
    with torch.autocast('cpu', torch.float16):
        outputs = backbone(torch.randn(1, 3, 100, 90))
    assert all(output.isfinite().all() for output in outputs)
    sum(output.float().square().mean() for output in outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in backbone.parameters())


@pytest.mark.parametrize('kind', KINDS)
def test_compiles_without_a_graph_break(kind):
    """By torch operations; tests/kernels/native/test_graphs.py compiles the library's layers."""
    one_stage = {} if kind is SwinBackbone else dict(depths=(2,), num_heads=(2,), strides=(4,), out_indices=(0,))
    backbone = randomised(kind=kind, backend='torch', **{**TWO_STAGES, **one_stage})
    x = torch.randn(2, 3, 40, 90)
    outputs, expected = torch.compile(backbone, fullgraph=True, backend='aot_eager')(x), backbone(x)
    parameters = list(backbone.parameters())
    gradients = [torch.autograd.grad(sum(o.square().mean() for o in maps), parameters) for maps in (outputs, expected)]
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(('arch', 'times'), [(TWO_STAGES, 1), pytest.param({}, 4, marks=pytest.mark.slow)])
@torch.no_grad()
def test_five_sizes_are_one_compilation(arch, times):
    """At all sizes, the last stage has at least two windows a side. A single window needs a second graph."""
    backbone, counter = SwinBackbone(arch='nano', **arch).eval(), CompileCounter()
    compiled = torch.compile(backbone, fullgraph=True, dynamic=True, backend=counter)
    heights, widths = (64, 58, 75, 120, 63), (80, 150, 58, 120, 63)
    for height, width in zip(heights, widths):
        x = torch.randn(1, 3, times * height, times * width)
        for output, reference in zip(compiled(x), backbone(x)):
            torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_traces_before_anything_was_computed(kind):
    """Tables from the first forward must not change later graphs: torch compares two graphs."""
    backbone = kind(
        **TWO_STAGES, embed_dims=32, window_size=5
    ).eval()  # no test before has size 5: the tables are not cached yet
    x = torch.randn(1, 3, 60, 97)
    for output, reference in zip(torch.jit.trace(backbone, x)(x), backbone(x)):
        torch.testing.assert_close(output, reference, rtol=1e-4, atol=1e-4)
