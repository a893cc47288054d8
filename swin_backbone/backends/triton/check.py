"""Compare the kernels with torch operations in float64 on a few windows, before a device's first use.

Layout: T tokens, L windows, C channels, h heads, d channels of a head, N places of a window.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import torch
from torch import Tensor

from ...windows.grid import Size, Windows
from .attention import launch_backward, launch_forward
from .tiles import Tiles, is_interpreted

# The largest allowed rounding error, relative to the larger of 1 and the largest value of a result. The mantissas of
# TF32 and float16 have equal lengths.
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
HEADS = 2
PROGRAMS = 2  # for a head: a program computes two of the four windows in turn
KINDS = {  # shifted, padded, with masked padding; the interpreter runs only the first kind, since a kind takes seconds
    'shifted and padded windows': (True, True, False),
    'whole windows': (False, False, False),
    'padded windows': (False, True, False),
    'shifted windows': (True, False, False),
    'shifted windows with masked padding': (True, True, True),
}
RESULTS = 'output', 'gradient of query, key and value', 'gradient of padding', 'gradient of the bias'


def why_wrong(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    """Return the name and the error of a wrong output or gradient of the kernels on `device`; None: all are right.

    A kind has four windows: inside the map, at the right edge, at the bottom edge and in the corner.
    """
    # A new thread does not have the caller's autocast, grad mode, dispatch modes, hooks and stream. If torch.compile
    # traces the caller, the new thread runs untraced.
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_why_wrong, device, dtype, window_size, head_dim).result()


def _why_wrong(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    limit = LIMITS[torch.float16 if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else dtype]
    N, C, generator = window_size[0] * window_size[1], HEADS * head_dim, torch.Generator().manual_seed(0)
    for kind, (shifted, padded, mask_padding) in list(KINDS.items())[: 1 if is_interpreted() else None]:
        # Little padding: tokens of shifted windows attend to padding. Masked padding is larger: the last two windows
        # hold padding.
        missing = [padded * (side // 2 + 1 if mask_padding else max(1, side // 3)) for side in window_size]
        height, width = (2 * side - m for side, m in zip(window_size, missing))
        shift = [side // 2 * shifted for side in window_size]
        shapes = (height * width, 3 * C), (3 * C,), (HEADS, N, N), (height * width, C)
        inputs = [torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype) for shape in shapes]
        qkv_T3C, padding_3C, bias_hNN, grad_TC = (x.to(device) for x in inputs)
        settings = 1, height, width, list(window_size), shift, mask_padding
        scale, tiles = head_dim**-0.5, Tiles(qkv_T3C, bias_hNN, *settings, programs=PROGRAMS)
        tensors = qkv_T3C, padding_3C if padded else None, bias_hNN  # whole windows have a separate kernel
        out_TC, lse_LhN = launch_forward(tiles, *tensors, scale)
        grads = launch_backward(tiles, grad_TC, *tensors, out_TC, lse_LhN, scale, padded, True)
        wanted = [x.double().requires_grad_() for x in inputs[:-1]]
        exact_qkv, exact_padding, exact_bias = wanted
        exact = attend_by_torch(exact_qkv, exact_padding, exact_bias, *settings, scale)
        expected = exact, *torch.autograd.grad(exact, wanted, inputs[-1].double())
        for what, result, x in zip(RESULTS, (out_TC, *grads), (x.detach() for x in expected)):
            if what == 'gradient of padding' and not padded:
                continue
            largest = max(1.0, float(x.abs().max()))
            error = float((result.cpu().double() - x).abs().max()) / largest
            if not error <= limit:  # also true for NaN
                return f'{what} of {kind} is off by {error:.1e} of its largest value, where {limit:.0e} is allowed'
    return None


def attend_by_torch(
    qkv_T3C: Tensor,
    padding_3C: Optional[Tensor],
    bias_hNN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: list[int],
    shift: list[int],
    mask_padding: bool,
    scale: float,
) -> Tensor:
    """Return the output of `attend_in_windows`, by torch operations."""
    row_3C = qkv_T3C.new_zeros(qkv_T3C.shape[1]) if padding_3C is None else padding_3C
    flagged_BHWC = torch.cat([torch.ones_like(qkv_T3C[:, :1]), qkv_T3C], dim=1).view(batch, height, width, -1)

    def project(flagged_LNC: Tensor) -> Tensor:  # padding has no flag
        return torch.where(flagged_LNC[..., :1] > 0, flagged_LNC[..., 1:], row_3C)

    windows = Windows(height, width, (window_size[0], window_size[1]), (shift[0], shift[1]), mask_padding)
    qkv_LN3C = project(windows.partition(flagged_BHWC))
    q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    logits_LhNN, mask_L1NN = (q * scale) @ k.transpose(-2, -1) + bias_hNN, windows.mask(q.device)
    if mask_L1NN is not None:
        logits_LhNN = logits_LhNN.masked_fill(~mask_L1NN.repeat(batch, 1, 1, 1), -torch.inf)
    y_LhNd = logits_LhNN.softmax(-1) @ v
    return windows.reverse(y_LhNd.transpose(1, 2).flatten(2), batch).flatten(0, 2)
