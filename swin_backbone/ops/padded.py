"""Windows that are shifted by padding and not by rolling: those of Swin-MLP (microsoft/Swin-Transformer).

Windows of w places that are shifted by s of them begin w - s places before a map; so there is one window more on an
axis, tokens of far edges never meet, and no window has a mask. There are two kinds: tables of indices for eager
PyTorch, and indices computed in the graph for everything that records one.

Layout: B batch, H W height and width of a map, C channels, T tokens, L windows, N places of a window, h heads, d
channels of a head.
"""

import torch
from torch import Tensor

from .exported import ExportedWindows
from .grid import Run, Size, WindowGrid
from .rolled import in_order
from .windows import TableWindows


class PaddedGrid(WindowGrid):
    """See `WindowGrid`; its `mask_padding` says nothing here, where padding is zeros."""

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
    """Found by tables of indices, all or in strips."""

    grid_kind = PaddedGrid


class PaddedInGraph(ExportedWindows):
    """Found by indices that are computed in the graph, from sizes that may be symbols."""

    def __init__(self, batch, height, width, window_size: Size, shift: Size, mask_padding: bool, device: torch.device):
        super().__init__(batch, height, width, window_size, (0, 0), False, device)
        self.before = places_before(window_size, shift)
        self.counts = tuple(map(count_windows, self.size, window_size, self.before))
        self.padded_size = tuple(n * side for n, side in zip(self.counts, window_size))

    def _unrolled(self, axis: int, device: torch.device) -> Tensor:
        """For each window of an axis where on the map its places are, the axis' length for those before it: (n, W)."""
        place = torch.arange(self.padded_size[axis], device=device) - self.before[axis]
        return torch.where(place < 0, self.size[axis], place).view(self.counts[axis], self.window_size[axis])

    def _rolled(self, axis: int, device: torch.device) -> Tensor:
        return torch.arange(self.size[axis], device=device) + self.before[axis]


def places_before(window_size: Size, shift: Size) -> Size:
    """The places of the first row and the first column of windows that are before the map."""
    rows, columns = (side - by if by else 0 for side, by in zip(window_size, shift))
    return rows, columns


def count_windows(length: int, side: int, before: int) -> int:
    """How many windows an axis has."""
    return (before + length + side - 1) // side


def mix_places(x_LNC: Tensor, weight_hNN: Tensor, bias_hN: Tensor) -> Tensor:
    """A linear layer over the places of each window, one a head, alike for all channels of the head: (L, N, C)."""
    (L, N, C), h = x_LNC.shape, len(weight_hNN)
    x_hNLd = in_order(x_LNC.view(L, N, h, C // h).permute(2, 1, 0, 3)).view(h, N, L * (C // h))
    y_hNLd = torch.baddbmm(bias_hN[..., None], weight_hNN, x_hNLd)
    return in_order(y_hNLd.view(h, N, L, C // h).permute(2, 1, 0, 3)).view(L, N, C)
