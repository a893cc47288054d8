"""Windows for a graph that is exported: one gather to windows and one back, as a `WindowGrid` has, at symbolic sizes.

A runtime has no compiler that fuses pad, roll and partition: each is a copy of the map. Here indices are computed in
the graph, from its sizes, and are alike in all blocks of a stage: once for shifted ones, once for the others. A block
computes on tokens (B, T, C) from its input to its output: where a norm and a residual of other dimensions share their
input, OpenVINO copies it.

Layout: B batch, H W height and width of a map, C channels, T = H*W tokens of an image, L windows, N places of a window,
P places of all windows of an image.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import RolledWindows


class ExportedWindows(RolledWindows):
    """All windows of a batch of maps. Tokens go to their windows before qkv, when they are a third as wide.

    Args: see `WindowGrid`.
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
