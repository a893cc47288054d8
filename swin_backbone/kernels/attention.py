"""Attention inside the windows of maps, with variants for kinds of devices.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels of a
head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import without_cudnn_attention
from ..windows.grid import Windows
from .choose import recorder_of
from .triton.can_run import can_run


def attend(
    x_BHWC: Tensor,
    project: Callable[[Tensor], Tensor],
    bias_hNN: Tensor,
    scale: float,
    windows: Windows,
    dropout: float = 0.0,
    backend: str = 'auto',
) -> Tensor:
    """Return softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4): (B, H, W, C).

    Args:
        x_BHWC: normalised tokens. Padding is zeros: `project` gives a padded token the biases.
        project: makes query, key and value, concatenated. Query, key and value are concatenated heads.
        bias_hNN: the relative position bias.
        dropout: the probability of dropping an attention weight.
        backend: 'auto', 'torch' or 'triton'; 'triton' raises a ValueError if the kernel cannot compute the attention.
    """
    if backend in ('auto', 'triton') and can_run(x_BHWC, bias_hNN, windows, dropout, raise_error=backend == 'triton'):
        return _attend_by_triton(x_BHWC, project, bias_hNN, scale, windows)
    q, k, v, bias_LhNN = _in_windows(x_BHWC, project, bias_hNN, windows)
    if takes_fused_attention(q):
        with without_cudnn_attention():
            y_LhNd = F.scaled_dot_product_attention(q, k, v, bias_LhNN, dropout, scale=scale)
    else:  # autocast computes a softmax in float32 unless the dtype is given; sums are in float32 anyway
        weights_LhNN = torch.softmax((q * scale) @ k.transpose(-2, -1) + bias_LhNN, dim=-1, dtype=q.dtype)
        y_LhNd = F.dropout(weights_LhNN, dropout) @ v
    return windows.reverse(y_LhNd.transpose(1, 2).flatten(2), x_BHWC.shape[0])


def takes_fused_attention(q: Tensor) -> bool:
    """Return whether torch's scaled_dot_product_attention computes. On a CPU two batched products take less time."""
    return q.device.type != 'cpu' and recorder_of(q) is None


def attention_weights(
    x_BHWC: Tensor, project: Callable[[Tensor], Tensor], bias_hNN: Tensor, scale: float, windows: Windows
) -> Tensor:
    """Return the attention weights of `attend`, (L, h, N, N): rows sum to 1."""
    q, k, _, bias_LhNN = _in_windows(x_BHWC, project, bias_hNN, windows)
    return torch.softmax((q * scale) @ k.transpose(-2, -1) + bias_LhNN, dim=-1, dtype=q.dtype)


def _in_windows(
    x_BHWC: Tensor, project: Callable[[Tensor], Tensor], bias_hNN: Tensor, windows: Windows
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query, key and value, three times (L, h, N, d), and the bias with the mask, (1 or L, h, N, N)."""
    qkv_LN3C = project(windows.partition(x_BHWC))
    q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    bias_LhNN, mask_L1NN = bias_hNN.to(q.dtype)[None], windows.mask(q.device)
    if mask_L1NN is not None:
        bias_LhNN = bias_LhNN.masked_fill(~mask_L1NN, -torch.inf).repeat(x_BHWC.shape[0], 1, 1, 1)
    return q, k, v, bias_LhNN


def _attend_by_triton(
    x_BHWC: Tensor, project: Callable[[Tensor], Tensor], bias_hNN: Tensor, scale: float, windows: Windows
) -> Tensor:
    """Return `attend` by the kernel. The kernel reads the tokens of a window from the map, without a partition."""
    from .triton.attention import attend_in_windows

    B, H, W, C = x_BHWC.shape
    Wh, Ww = windows.window_size
    qkv_T3C = project(x_BHWC.reshape(B * H * W, C))
    # A graph for all sizes must not compare sizes with the window.
    is_padded = torch.compiler.is_compiling() or H % Wh or W % Ww
    padding_3C = project(x_BHWC.new_zeros(1, C))[0] if is_padded else qkv_T3C.new_zeros(qkv_T3C.shape[1])
    sizes = B, H, W, [Wh, Ww], list(windows.shift), windows.mask_padding
    y_TC: Tensor = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *sizes, scale)[0]
    return y_TC.view(B, H, W, y_TC.shape[-1])
