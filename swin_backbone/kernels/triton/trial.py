"""Compare the kernels with torch operations in float64 on a few windows, before the first use of a variant.

Layout: T tokens, C channels, h heads, N places of a window.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import torch

from .by_torch import attend_by_torch, attend_by_torch_backward
from .launch import launch_backward, launch_forward
from .tiles import Tiles, Variant

# The largest allowed rounding error, relative to the larger of 1 and the largest value of a result. The mantissas of
# TF32 and float16 have equal lengths.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
NUM_HEADS = 2
PROGRAMS = 2  # for a head: a program computes two of the four windows in turn
RESULTS = 'output', 'gradient of query, key and value', 'gradient of padding', 'gradient of the bias'


def compare_with_torch(variant: Variant) -> Optional[str]:
    """Return the name and the error of a wrong output or gradient of a variant; None: all are right.

    The map has four windows: inside, at the right edge, at the bottom edge and in the corner.
    """
    # A new thread does not have the caller's autocast, grad mode, dispatch modes, hooks and stream. If torch.compile
    # traces the caller, the new thread runs untraced.
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_compare_with_torch, variant).result()


def _compare_with_torch(variant: Variant) -> Optional[str]:
    limit = TOLERANCES[torch.float16 if variant.tf32 else variant.dtype]
    generator, scale = torch.Generator().manual_seed(0), variant.head_dim**-0.5
    N, C = variant.window_size[0] * variant.window_size[1], NUM_HEADS * variant.head_dim
    height, width = (
        2 * side - max(1, side // 3) for side in variant.window_size
    )  # little padding: tokens attend to it
    shapes = (height * width, C), (height * width, 3 * C), (3 * C,), (NUM_HEADS, N, N)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float32).to(variant.dtype) for shape in shapes]
    settings = 1, height, width, list(variant.window_size), list(variant.shift), variant.mask_padding
    grad, qkv, padding, bias = (x.double() for x in inputs)
    out_TC, _ = attend_by_torch(qkv, padding, bias, *settings, scale)
    expected = out_TC, *attend_by_torch_backward(grad, qkv, padding, bias, *settings, scale, True)

    grad, qkv, padding, bias = (x.to(variant.device) for x in inputs)
    tiles = Tiles(qkv, bias, *settings, PROGRAMS, variant.is_wide)
    out_TC, lse_LhN = launch_forward(tiles, qkv, padding, bias, scale)
    for needs_padding in (True, False):
        grads = launch_backward(tiles, grad, qkv, padding, bias, out_TC, lse_LhN, scale, needs_padding)
        for name, result, x in zip(RESULTS, (out_TC, *grads), expected):
            if result.numel():  # without `needs_padding`, padding has no gradient
                error = float((result.cpu().double() - x).abs().max()) / max(1.0, float(x.abs().max()))
                if not error <= limit:  # also true for NaN
                    return f'{name} is off by {error:.1e} of its largest value, where {limit:.0e} is allowed'
    return None
