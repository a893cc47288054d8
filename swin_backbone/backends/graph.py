"""Windows of whole maps in one graph: what torch.compile, export, tracing, `torch.func` and meta tensors see.

There sizes may be symbols. Index tables would be built anew in every run of the graph, and which windows touch an edge
would be a guard on the size, so here are the paper's own pad, roll and partition, which a compiler fuses into the
operations around them; and the mask of every window is an expression that it computes where it is used.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..windows.grid import Size
from .linear import linear, without_autocast


class RolledWindows:
    """All windows of a batch of maps, row by row; tokens are maps (B, H, W, C).

    Args: see `WindowGrid`.
    """

    def __init__(self, batch, height, width, window_size: Size, shift: Size, mask_padding: bool, device: torch.device):
        self.batch, self.size, self.window_size, self.shift = batch, (height, width), window_size, shift
        # How many windows, and from that how much padding: symbols stay products, which are quick to reason about.
        self.counts = tuple((length + window - 1) // window for length, window in zip(self.size, window_size))
        self.padded_size = tuple(n * window for n, window in zip(self.counts, window_size))
        self.mask_L1NN = self._mask(mask_padding, device)

    @classmethod
    def cut(cls, window_tokens: Optional[int], *geometry) -> 'list[RolledWindows]':
        """All windows as one piece; there is no smaller one."""
        return [cls(*geometry)]

    linear = staticmethod(linear)

    def read(self, x_BHWC: Tensor) -> Tensor:
        """The maps as they are."""
        return x_BHWC

    def write(self, y_BHWC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """The maps as they have become."""
        return y_BHWC

    def pad(self, x_BHWC: Tensor, by_bias: bool = False) -> Tensor:
        """The maps padded with zeros to whole windows."""
        return pad_map(x_BHWC, *self.padded_size)

    def to_windows(self, x_BHWC: Tensor) -> Tensor:
        """Padded maps to (L, N, C)."""
        if any(self.shift):
            x_BHWC = x_BHWC.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        (rows, columns), (Wh, Ww), C = self.counts, self.window_size, x_BHWC.shape[-1]
        x = in_order(x_BHWC.view(self.batch, rows, Wh, columns, Ww, C).transpose(2, 3))
        return x.view(self.batch * rows * columns, Wh * Ww, C)

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """(L, N, C) to maps (B, H, W, C)."""
        (rows, columns), (Wh, Ww), C = self.counts, self.window_size, x_LNC.shape[-1]
        x = in_order(x_LNC.view(self.batch, rows, columns, Wh, Ww, C).transpose(2, 3))
        x_BHWC = x.view(self.batch, rows * Wh, columns * Ww, C)
        if any(self.shift):
            x_BHWC = x_BHWC.roll(self.shift, dims=(1, 2))
        return in_order(x_BHWC[:, : self.size[0], : self.size[1]])

    def attend(self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C=None) -> Tensor:
        """See `Windows`. One expression over all windows, which a compiler fuses with that of the mask."""
        qkv_LN3C = self.to_windows(qkv_BHW3C)
        q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias = bias_hNN.to(q.dtype)
        bias = bias if self.mask_L1NN is None else bias.masked_fill(~self.mask_L1NN, -torch.inf)
        with without_autocast(q.device.type):  # which would make half precision float32; the sum is float32 anyway
            weights = torch.softmax((q * scale) @ k.transpose(-2, -1) + bias, dim=-1)
            x_LhNd = F.dropout(weights, dropout) @ v
        return self.to_tokens(x_LhNd.transpose(1, 2).flatten(2))

    def per_token(self, values_B: Tensor) -> Tensor:
        """(B, 1, 1, 1)."""
        return values_B[:, None, None, None]

    def per_image(self, x_BHWC: Tensor) -> Tensor:
        """The maps as they are."""
        return x_BHWC

    def _mask(self, mask_padding: bool, device: torch.device) -> Optional[Tensor]:
        """Which pairs of places are in one region: (L, 1, N, N), None where all are."""
        if not (any(self.shift) or mask_padding):
            return None
        rows_nW, columns_nW = (self._regions(axis, mask_padding, device) for axis in (0, 1))
        (rows, columns), (Wh, Ww) = self.counts, self.window_size
        region_LN = (rows_nW[:, None, :, None] * 3 + columns_nW[None, :, None, :]).view(rows * columns, Wh * Ww)
        mask_LNN = region_LN[:, :, None] == region_LN[:, None]
        return mask_LNN.repeat(self.batch, 1, 1)[:, None]

    def _regions(self, axis: int, mask_padding: bool, device: torch.device) -> Tensor:
        number, window, shift = self.counts[axis], self.window_size[axis], self.shift[axis]
        padded = number * window
        rolled = torch.arange(padded, device=device)
        wrapped = rolled >= padded - shift
        region = wrapped.long()
        if mask_padding:
            coordinate = rolled + shift - region * padded  # before the roll; `%` of a symbol does not export
            region = torch.where(coordinate >= self.size[axis], 2, region)
        return region.view(number, window)


def in_order(x: Tensor) -> Tensor:
    """`x` copied into memory in the order of its dimensions; `contiguous()` asks first, which is a guard on sizes."""
    return x.clone(memory_format=torch.contiguous_format)


def pad_map(x_BHWC: Tensor, height: int, width: int) -> Tensor:
    """A map padded with zeros at right and bottom to `height` x `width`."""
    B, H, W, C = x_BHWC.shape
    if not torch.compiler.is_compiling():
        return F.pad(x_BHWC, (0, 0, 0, width - W, 0, height - H))
    # One side after the other: what pads a tensor of four dimensions asks for its memory format, which is a guard.
    x = F.pad(in_order(x_BHWC).view(B * H, W, C), (0, 0, 0, width - W))
    x = F.pad(x.view(B, H, width * C), (0, 0, 0, height - H))
    return x.view(B, height, width, C)
