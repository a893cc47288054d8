"""Windows that are shifted by padding and not by rolling, as in Swin-MLP (microsoft/Swin-Transformer).

Windows of side w that are shifted by s places begin w - s places before the map. So tokens of opposite edges are never
in one window, and no window needs a mask, but an axis can have one more window. There are two implementations: tables
of indices for eager PyTorch, and indices computed in the graph for torch.compile and export.

Layout: B batch, H W height and width of a map, C channels, T tokens, L windows, N places of a window, h heads, d
channels of a head.
"""

import torch
from torch import Tensor

from ..windows.grid import Run, Size, WindowGrid
from .eager import TableWindows
from .exported import ExportedWindows
from .graph import in_order


class PaddedGrid(WindowGrid):
    """See `WindowGrid`. `mask_padding` has no effect, since padding is zeros."""

    def __init__(
        self,
        batch: int,
        height: int,
        width: int,
        window_size: Size,
        shift: Size,
        mask_padding: bool,
        device: torch.device,
    ):
        self.tokens_per_image = height * width
        self.window_area = window_size[0] * window_size[1]
        rows_nW, columns_nW = (
            (torch.arange(count_windows(length, side, before) * side, device=device) - before).view(-1, side)
            for length, side, before in zip((height, width), window_size, places_before(window_size, shift))
        )
        y, x = rows_nW[:, None, None, :, None], columns_nW[None, :, None, None, :]  # windows, image, places
        images_B11 = torch.arange(batch, device=device)[:, None, None] * (height * width)
        on_map = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        token_at_LN = torch.where(on_map, y * width + x + images_B11, -1).view(-1, self.window_area)
        padded_L = (token_at_LN < 0).any(1)
        self.token_at_LN = token_at_LN[padded_L.long().argsort(stable=True)]  # those without padding first
        self.num_windows = len(token_at_LN)
        self.runs = (Run(self.num_windows, None),)


class PaddedTables(TableWindows):
    """Windows by tables of indices, all at once or in strips."""

    grid_kind = PaddedGrid


class PaddedInGraph(ExportedWindows):
    """Windows by indices that are computed in the graph, from sizes that may be symbolic."""

    def __init__(self, batch, height, width, window_size: Size, shift: Size, mask_padding: bool, device: torch.device):
        super().__init__(batch, height, width, window_size, (0, 0), False, device)
        self.before = places_before(window_size, shift)
        self.counts = tuple(map(count_windows, self.size, window_size, self.before))
        self.padded_size = tuple(n * side for n, side in zip(self.counts, window_size))

    def _unrolled(self, axis: int, device: torch.device) -> Tensor:
        """The coordinate on the map of each place of each window of an axis: (n, W).

        Places before the map get the length of the axis, as padding.
        """
        place = torch.arange(self.padded_size[axis], device=device) - self.before[axis]
        return torch.where(place < 0, self.size[axis], place).view(self.counts[axis], self.window_size[axis])

    def _rolled(self, axis: int, device: torch.device) -> Tensor:
        return torch.arange(self.size[axis], device=device) + self.before[axis]


def places_before(window_size: Size, shift: Size) -> Size:
    """How many places of the first row and the first column of windows are before the map."""
    rows, columns = (side - by if by else 0 for side, by in zip(window_size, shift))
    return rows, columns


def count_windows(length: int, side: int, before: int) -> int:
    """How many windows an axis has."""
    return (before + length + side - 1) // side


def mix_places(x_LNC: Tensor, weight_hNN: Tensor, bias_hN: Tensor) -> Tensor:
    """Apply a linear layer over the places of each window, one for each head and its channels: (L, N, C)."""
    (L, N, C), h = x_LNC.shape, len(weight_hNN)
    x_hNLd = in_order(x_LNC.view(L, N, h, C // h).permute(2, 1, 0, 3)).view(h, N, L * (C // h))
    y_hNLd = torch.baddbmm(bias_hN[..., None], weight_hNN, x_hNLd)
    return in_order(y_hNLd.view(h, N, L, C // h).permute(2, 1, 0, 3)).view(L, N, C)
