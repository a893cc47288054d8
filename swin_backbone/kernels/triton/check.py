"""Compare the kernels with torch operations in float64 on a few windows, before a device's first use.

Layout: T tokens, L windows, C channels, h heads, N places of a window.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import torch
from torch import Tensor

from ...compat import allows_tf32
from ...windows.grid import Size, Windows
from .attention import attend_in_windows, attend_in_windows_backward

# The largest allowed rounding error, relative to the larger of 1 and the largest value of a result. The mantissas of
# TF32 and float16 have equal lengths.
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
NUM_HEADS = 2
PROGRAMS = 2  # for a head: a program computes two of the four windows in turn
RESULTS = 'output', 'gradient of query, key and value', 'gradient of padding', 'gradient of the bias'


def why_wrong(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    """Return the name and the error of a wrong output or gradient of the kernels on `device`; None: all are right.

    A shifted map has four windows: inside the map, at the right edge, at the bottom edge and in the corner.
    """
    # A new thread does not have the caller's autocast, grad mode, dispatch modes, hooks and stream. If torch.compile
    # traces the caller, the new thread runs untraced.
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_why_wrong, device, dtype, window_size, head_dim).result()


def _why_wrong(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    limit = LIMITS[torch.float16 if dtype == torch.float32 and allows_tf32() else dtype]
    N, C, generator = window_size[0] * window_size[1], NUM_HEADS * head_dim, torch.Generator().manual_seed(0)
    height, width = (2 * side - max(1, side // 3) for side in window_size)  # with little padding: tokens attend to it
    shapes = (height * width, 3 * C), (3 * C,), (NUM_HEADS, N, N), (height * width, C)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype) for shape in shapes]
    settings = 1, height, width, list(window_size), [side // 2 for side in window_size], False
    scale = head_dim**-0.5
    qkv_T3C, padding_3C, bias_hNN, grad_TC = (x.to(device) for x in inputs)
    out_TC, lse_LhN = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *settings, scale, PROGRAMS)
    tensors = grad_TC, qkv_T3C, padding_3C, bias_hNN, out_TC, lse_LhN
    grads = attend_in_windows_backward(*tensors, *settings, scale, PROGRAMS, True)
    exact_qkv, exact_padding, exact_bias = exact = [x.double().requires_grad_() for x in inputs[:-1]]
    exact_TC = attend_by_torch(exact_qkv, exact_padding, exact_bias, *settings, scale)
    expected = exact_TC.detach(), *torch.autograd.grad(exact_TC, exact, inputs[-1].double())
    for name, result, x in zip(RESULTS, (out_TC, *grads), expected):
        error = float((result.cpu().double() - x).abs().max()) / max(1.0, float(x.abs().max()))
        if not error <= limit:  # also true for NaN
            return f'{name} is off by {error:.1e} of its largest value, where {limit:.0e} is allowed'
    return None


def attend_by_torch(
    qkv_T3C: Tensor,
    padding_3C: Tensor,
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
    flagged_BHWC = torch.cat([torch.ones_like(qkv_T3C[:, :1]), qkv_T3C], dim=1).view(batch, height, width, -1)

    windows = Windows(height, width, (window_size[0], window_size[1]), (shift[0], shift[1]), mask_padding)
    flagged_LNC = windows.partition(flagged_BHWC)  # padding has no flag
    qkv_LN3C = torch.where(flagged_LNC[..., :1] > 0, flagged_LNC[..., 1:], padding_3C)
    q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    logits_LhNN, mask_L1NN = (q * scale) @ k.transpose(-2, -1) + bias_hNN, windows.mask(q.device)
    if mask_L1NN is not None:
        logits_LhNN = logits_LhNN.masked_fill(~mask_L1NN.repeat(batch, 1, 1, 1), -torch.inf)
    y_LhNd = logits_LhNN.softmax(-1) @ v
    return windows.reverse(y_LhNd.transpose(1, 2).flatten(2), batch).flatten(0, 2)
