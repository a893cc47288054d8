"""Whole maps in one graph: what torch.compile, export, tracing, `torch.func` and meta tensors see.

There sizes may be symbols. Index tables would be built anew in every run of the graph, and which windows touch an edge
would be a guard on the size, so here are the paper's own pad, roll and partition, which a compiler fuses into the
operations around them; and the mask of every window is an expression that it computes where it is used.

Layout: B batch, H W height and width of a map, C channels, T = H*W tokens of an image, L windows, N places of a window,
P places of all windows of an image, h heads.
"""

from functools import partial
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import is_exporting
from ..windows.grid import Geometry, count_windows, places_before
from .functions import patches
from .functions.block import BLOCKS, in_dtype, linear
from .protocol import (
    BlockSettings,
    BlockWeights,
    EmbeddingWeights,
    MergingWeights,
    MLPBlockWeights,
    Plan,
    Request,
    Windows,
)
from .strips import checkpointed
from .weight_cache import WeightCache

ROW_MAJOR = torch.contiguous_format  # by `clone`, since `contiguous()` asks first, which is a guard on sizes


class RolledWindows:
    """All windows of a batch of maps, row by row; tokens are maps (B, H, W, C)."""

    def __init__(self, geometry: Geometry):
        self.batch, height, width, window_size, self.shift, mask_padding, device = geometry
        self.size, self.window_size = (height, width), window_size
        # How many windows, and from that how much padding: symbols stay products, which are quick to reason about.
        self.counts = tuple((length + window - 1) // window for length, window in zip(self.size, window_size))
        self.padded_size = tuple(n * window for n, window in zip(self.counts, window_size))
        self.mask_L1NN = self._mask(mask_padding, device)

    linear = staticmethod(linear)

    def read(self, x_BHWC: Tensor, *_: Any) -> Tensor:
        """The maps as they are."""
        return x_BHWC

    write: Any = read
    per_image: Any = read

    def pad(self, x_BHWC: Tensor, by_bias: bool = False) -> Tensor:
        """The maps padded with zeros to whole windows."""
        height, width = self.padded_size
        if torch.compiler.is_compiling():
            return patches.pad_symbols(x_BHWC, height, width)
        return F.pad(x_BHWC, (0, 0, 0, width - x_BHWC.shape[2], 0, height - x_BHWC.shape[1]))

    def to_windows(self, x_BHWC: Tensor) -> Tensor:
        """Padded maps to (L, N, C)."""
        if any(self.shift):
            x_BHWC = x_BHWC.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        (rows, columns), (Wh, Ww), C = self.counts, self.window_size, x_BHWC.shape[-1]
        x = x_BHWC.view(self.batch, rows, Wh, columns, Ww, C).transpose(2, 3).clone(memory_format=ROW_MAJOR)
        return x.view(self.batch * rows * columns, Wh * Ww, C)

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """(L, N, C) to maps (B, H, W, C)."""
        (rows, columns), (Wh, Ww), C = self.counts, self.window_size, x_LNC.shape[-1]
        x = x_LNC.view(self.batch, rows, columns, Wh, Ww, C).transpose(2, 3).clone(memory_format=ROW_MAJOR)
        x_BHWC = x.view(self.batch, rows * Wh, columns * Ww, C)
        if any(self.shift):
            x_BHWC = x_BHWC.roll(self.shift, dims=(1, 2))
        return x_BHWC[:, : self.size[0], : self.size[1]].clone(memory_format=ROW_MAJOR)

    def attend(
        self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """See `Windows`. One expression over all windows, which a compiler fuses with that of the mask."""
        qkv_LN3C = self.to_windows(qkv_BHW3C)
        q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias = bias_hNN.to(q.dtype)
        bias = bias if self.mask_L1NN is None else bias.masked_fill(~self.mask_L1NN, -torch.inf)
        # Autocast would make half precision float32 here, unless the dtype is given; the sum is in float32 anyway.
        weights = torch.softmax((q * scale) @ k.transpose(-2, -1) + bias, dim=-1, dtype=q.dtype)
        x_LhNd = F.dropout(weights, dropout) @ v
        return self.to_tokens(x_LhNd.transpose(1, 2).flatten(2))

    def per_token(self, values_B: Tensor) -> Tensor:
        """(B, 1, 1, 1)."""
        return values_B[:, None, None, None]

    def _mask(self, mask_padding: bool, device: torch.device) -> Optional[Tensor]:
        """Which pairs of places are in one region: (L, 1, N, N), None where all are."""
        if not (any(self.shift) or mask_padding):
            return None
        regions = []  # of the rows, then of the columns: of each place of each window of the axis
        for size, number, window, shift in zip(self.size, self.counts, self.window_size, self.shift):
            padded = number * window
            rolled = torch.arange(padded, device=device)
            region = (rolled >= padded - shift).long()
            if mask_padding:
                coordinate = rolled + shift - region * padded  # before the roll; `%` of a symbol does not export
                region = torch.where(coordinate >= size, 2, region)
            regions.append(region.view(number, window))
        rows_nW, columns_nW = regions
        (rows, columns), (Wh, Ww) = self.counts, self.window_size
        region_LN = (rows_nW[:, None, :, None] * 3 + columns_nW[None, :, None, :]).view(rows * columns, Wh * Ww)
        mask_LNN = region_LN[:, :, None] == region_LN[:, None]
        return mask_LNN.repeat(self.batch, 1, 1)[:, None]


class ExportedWindows(RolledWindows):
    """Windows for a graph that is exported: one gather to windows and one back, as a `WindowGrid` has.

    A runtime has no compiler that fuses pad, roll and partition: each is a copy of the map. Here indices are computed
    in the graph, from its sizes, and are alike in all blocks of a stage: once for shifted ones, once for the others. A
    block computes on tokens (B, T, C) from its input to its output: where a norm and a residual of other dimensions
    share their input, OpenVINO copies it. Tokens go to their windows before qkv, when they are a third as wide.
    """

    def read(self, x_BHWC: Tensor) -> Tensor:
        """The tokens of the maps: (B, T, C)."""
        B, H, W, C = x_BHWC.shape
        return x_BHWC.reshape(B, H * W, C)

    def write(self, y_BTC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """The maps that the tokens have become."""
        return y_BTC.view(x_BHWC.shape)

    def pad(self, x_BTC: Tensor, by_bias: bool = False) -> Tensor:
        """The windows of a map, with zeros where they reach over it: (L, N, C)."""
        B, C = x_BTC.shape[0], x_BTC.shape[-1]
        if not all(isinstance(n, int) and n == padded for n, padded in zip(self.size, self.padded_size)):
            x_BTC = F.pad(x_BTC, (0, 0, 0, 1))
        (rows, columns), (Wh, Ww) = self.counts, self.window_size
        return x_BTC.index_select(1, self._token_at_P(x_BTC.device)).view(B * rows * columns, Wh * Ww, C)

    def to_windows(self, x_LNC: Tensor) -> Tensor:
        """`pad` has done this already."""
        return x_LNC

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """(L, N, C) to (B, T, C)."""
        (rows, columns), (Wh, Ww), C = self.counts, self.window_size, x_LNC.shape[-1]
        x_BPC = x_LNC.reshape(self.batch, rows * columns * Wh * Ww, C)
        return x_BPC.index_select(1, self._place_of_T(x_LNC.device))

    def per_token(self, values_B: Tensor) -> Tensor:
        """(B, 1, 1)."""
        return values_B[:, None, None]

    def _token_at_P(self, device: torch.device) -> Tensor:
        """For each place its token, H*W for padding."""
        H, W = self.size
        rows_nW, columns_nW = (self._unrolled(axis, device) for axis in (0, 1))
        y, x = rows_nW[:, None, :, None], columns_nW[None, :, None, :]
        token = torch.where((y < H) & (x < W), y * W + x, H * W)
        return token.reshape(self.counts[0] * self.counts[1] * self.window_size[0] * self.window_size[1])

    def _unrolled(self, axis: int, device: torch.device) -> Tensor:
        """For each window of an axis, the positions of its places on the padded map: (n, W)."""
        padded, shift = self.padded_size[axis], self.shift[axis]
        place = torch.arange(padded, device=device)
        if shift:
            place = torch.where(place >= padded - shift, place + shift - padded, place + shift)
        return place.view(self.counts[axis], self.window_size[axis])

    def _place_of_T(self, device: torch.device) -> Tensor:
        """For each token its place."""
        (H, W), (Wh, Ww), columns = self.size, self.window_size, self.counts[1]
        row_H, column_W = self._rolled(0, device), self._rolled(1, device)
        of_row_H = (row_H // Wh) * (columns * Wh * Ww) + row_H % Wh * Ww
        of_column_W = (column_W // Ww) * (Wh * Ww) + column_W % Ww
        return (of_row_H[:, None] + of_column_W).reshape(H * W)

    def _rolled(self, axis: int, device: torch.device) -> Tensor:
        """For each row or column of a map, its position on the rolled map."""
        shift = self.shift[axis]
        place = torch.arange(self.size[axis], device=device)
        return torch.where(place < shift, place - shift + self.padded_size[axis], place - shift) if shift else place


class PaddedInGraph(ExportedWindows):
    """Windows that shift by padding, as `PaddedGrid` has them."""

    def __init__(self, geometry: Geometry):
        super().__init__(geometry._replace(shift=(0, 0), mask_padding=False))
        self.before = places_before(geometry.window_size, geometry.shift)
        self.counts = tuple(map(count_windows, self.size, self.window_size, self.before))
        self.padded_size = tuple(n * side for n, side in zip(self.counts, self.window_size))

    def _unrolled(self, axis: int, device: torch.device) -> Tensor:
        """The coordinate on the map of each place of each window of an axis: (n, W).

        Places before the map get the length of the axis, as padding.
        """
        place = torch.arange(self.padded_size[axis], device=device) - self.before[axis]
        return torch.where(place < 0, self.size[axis], place).view(self.counts[axis], self.window_size[axis])

    def _rolled(self, axis: int, device: torch.device) -> Tensor:
        return torch.arange(self.size[axis], device=device) + self.before[axis]


class Graph:
    """Whole maps at a time, as one graph. It also runs without a compiler, more slowly than `Eager`."""

    name = 'graph'

    def why_not(self, request: Request) -> Optional[str]:
        """See `Backend`. It computes everything; strips are of no use to it."""
        return None

    def embed(
        self, image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float], plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`. To a compiler a convolution would check the memory format, which is a guard on sizes."""
        if torch.compiler.is_compiling():
            return patches.embed(image_BCHW.permute(0, 2, 3, 1), in_dtype(w, plan.dtype), eps)
        return patches.convolve(image_BCHW, w, eps)

    def block(
        self,
        x_BHWC: Tensor,
        w: Union[BlockWeights, MLPBlockWeights],
        settings: BlockSettings,
        geometry: Geometry,
        plan: Plan,
        cache: WeightCache,
    ) -> Tensor:
        """See `Backend`."""
        windows = self.windows(geometry, settings.kind)
        if plan.dtype is not None:
            w = in_dtype(w, plan.dtype)
        compute = partial(BLOCKS[settings.kind], settings=settings)
        if plan.with_cp and torch.is_grad_enabled():
            return checkpointed(compute, x_BHWC, windows, w)
        return windows.write(compute(windows.read(x_BHWC), windows, w), x_BHWC, None)

    def merge(
        self, x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        return patches.merge(x_BHWC, patches.neighbours_in_order(in_dtype(w, plan.dtype), post_norm), eps, post_norm)

    def output_norm(
        self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, plan: Plan
    ) -> Tensor:
        """See `Backend`."""
        return patches.output_norm(x_BHWC, weight, bias, eps)

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        """See `Backend`."""
        if kind == 'mlp':
            return PaddedInGraph(geometry)
        return ExportedWindows(geometry) if is_exporting() else RolledWindows(geometry)
