"""Whole maps on a GPU: attention is a kernel that computes where the tokens of a window are. Residual sums and norms
can be kernels too. Operators are imported where they are called: to define them takes a fifth of a second, for which
importing the package does not wait.

Layout: B batch, H W height and width of a map, C channels, T = B*H*W tokens, h heads, N places of a window.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...compat import constant_when_compiled
from ...windows.grid import Geometry
from ..functions import block
from ..functions.block import BLOCKS, LINEAR, in_dtype, linear
from ..graph import Graph
from ..protocol import BlockSettings, BlockWeights, Plan, Request, Windows
from ..strips import checkpointed
from ..weight_cache import WeightCache
from .cast import cast_together
from .trial import why_unfit, why_unusable

# Fusions besides attention. SWIN_BACKBONE_FUSE lists those to use, separated by commas. None is on by default, since
# their speed has not been measured on a GPU yet.
#   norm: residual sums, with drop path, and their norms (V1 only)
#   gelu: the bias before an exact GELU, and the gradients of both
#   weights: the casts of all weights of a block, under automatic mixed precision
FUSIONS = 'norm', 'gelu', 'weights'


class Triton(Graph):
    """Whole maps, with attention by a kernel. Its backward stores no attention weights and has no derivative."""

    name = 'triton'

    def why_not(self, request: Request) -> Optional[str]:
        """See `Backend`. The first time that a device, dtype, window and head come, the kernels are tried on them."""
        return why_unfit(request) or why_unusable(request.device, request.dtype, request.window_size, request.head_dim)

    def block(
        self, x_BHWC: Tensor, w: Any, settings: BlockSettings, geometry: Geometry, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        fused, windows = fusions(), TritonWindows(geometry)
        windows.fuses_gelu = 'gelu' in fused
        if 'weights' in fused and plan.dtype is not None and not torch.compiler.is_compiling():
            w = _cast_at_once(w, plan.dtype)
        function = fused_block if 'norm' in fused and settings.kind == 'v1' else BLOCKS[settings.kind]
        compute = partial(function, settings=settings)
        if plan.dtype is not None:
            w = in_dtype(w, plan.dtype)
        if plan.with_cp and torch.is_grad_enabled():
            return checkpointed(compute, x_BHWC, windows, w)
        return windows.write(compute(windows.read(x_BHWC), windows, w), x_BHWC, None)

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        """See `Backend`."""
        return TritonWindows(geometry)


def _cast_at_once(w: BlockWeights, dtype: torch.dtype) -> BlockWeights:
    """The weights of linear layers cast in one launch."""
    names = [name for name in w._fields if name in LINEAR]
    cast = cast_together([getattr(w, name) for name in names], dtype)
    made: dict[str, Any] = dict(zip(names, cast))
    return w._replace(**made)


class TritonWindows:
    """All windows of a batch of maps, without a table of indices. The kernel has no dropout of attention weights."""

    fuses_gelu = False

    def __init__(self, geometry: Geometry):
        batch, height, width, window_size, shift, mask_padding, _ = geometry
        self.settings = batch, height, width, list(window_size), list(shift), mask_padding
        self.tokens_per_image, self.num_tokens = height * width, batch * height * width
        # A graph for all sizes must not test whether sizes are multiples of the window.
        self.padded = torch.compiler.is_compiling() or bool(height % window_size[0] or width % window_size[1])

    def linear(
        self,
        x_TC: Tensor,
        weight_DC: Tensor,
        bias_D: Optional[Tensor],
        activation: Optional[Callable[[Tensor], Tensor]] = None,
        gradient_only: bool = False,
    ) -> Tensor:
        """See `Windows`."""
        is_exact = isinstance(activation, nn.GELU) and activation.approximate == 'none'
        if bias_D is None or not is_exact or not self.fuses_gelu:
            return linear(x_TC, weight_DC, bias_D, activation)
        from .hidden import bias_gelu

        y_TD: Tensor = bias_gelu(linear(x_TC, weight_DC, None), bias_D)
        return y_TD

    def read(self, x_BHWC: Tensor) -> Tensor:
        """(T, C)."""
        return x_BHWC.flatten(0, 2)

    def write(self, y_TC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """See `Windows`."""
        return y_TC.view(x_BHWC.shape)

    def pad(self, x_TC: Tensor, by_bias: bool = False) -> Tensor:
        """The tokens, and after them one zero token, unless the kernel gets the bias of qkv."""
        return F.pad(x_TC, (0, 0, 0, 1)) if self.padded and not by_bias else x_TC

    def attend(
        self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """See `Windows`."""
        from .attention import attend_in_windows

        padding_3C = qkv_bias_3C if self.padded else None
        if len(qkv_T3C) > self.num_tokens:  # the module before this one computed that of the zero token
            qkv_T3C, row_13C = qkv_T3C.split((self.num_tokens, 1))
            padding_3C = row_13C[0]
        y_TC: Tensor = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *self.settings, scale)[0]
        return y_TC

    def per_token(self, values_B: Tensor) -> Tensor:
        """(T, 1)."""
        return values_B[:, None].expand(-1, self.tokens_per_image).reshape(-1, 1)

    def per_image(self, x_TC: Tensor) -> Tensor:
        """(B, H*W, C)."""
        return x_TC.view(-1, self.tokens_per_image, x_TC.shape[-1])


@constant_when_compiled
def fusions() -> tuple[str, ...]:
    """The fusions that SWIN_BACKBONE_FUSE asks for.

    Raises:
        ValueError: if SWIN_BACKBONE_FUSE names something else.
    """
    asked = tuple(filter(None, os.environ.get('SWIN_BACKBONE_FUSE', '').split(',')))
    unknown = set(asked).difference(FUSIONS)
    if unknown:
        raise ValueError(f'SWIN_BACKBONE_FUSE takes {", ".join(FUSIONS)}, got {", ".join(sorted(unknown))}')
    return asked


def fused_block(
    x_TC: Tensor,
    windows: TritonWindows,
    w: BlockWeights,
    settings: BlockSettings,
    gradient_only: bool = False,
) -> Tensor:
    """`block.swin_block`, where each residual sum, with its drop path and its norm, is one pass over memory."""
    from .residual import add_norm

    if w.norm1_weight is None or w.norm2_weight is None:
        return block.swin_block(x_TC, windows, w, settings, gradient_only)
    factors_2B, dtype = w.drop_path_2B if w.drop_path_2B is not None else (None, None), w.qkv_weight.dtype
    norms = (w.norm1_weight, w.norm1_bias, settings.eps[0]), (w.norm2_weight, w.norm2_bias, settings.eps[1])
    _, y_TC, _, _ = add_norm(x_TC, None, None, *norms[0], dtype)
    y_TC = block.attention(y_TC, windows, w, settings)
    x_TC, y_TC, _, _ = add_norm(x_TC, y_TC, factors_2B[0], *norms[1], dtype)
    y_TC = block.mlp(y_TC, windows, w, settings, gradient_only)
    out_TC: Tensor = add_norm(x_TC, y_TC, factors_2B[1], None, None, 0.0, dtype)[0]
    return out_TC
