"""The windows of whole maps for the Triton kernel, which finds the tokens in them by arithmetic.

Layout: B batch, H W height and width of a map, C channels, T = B*H*W tokens, h heads, N places of a window.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .grid import Size
from .linear import linear


class TritonWindows:
    """All windows of a batch of maps, without a table of indices. The kernel drops no attention weights.

    Args: see `WindowGrid`.
    """

    def __init__(self, batch, height, width, window_size: Size, shift: Size, mask_padding: bool, device: torch.device):
        self.settings = batch, height, width, list(window_size), list(shift), mask_padding
        self.tokens_per_image = height * width
        # One graph for all sizes does not ask whether they are multiples of the window.
        self.padded = torch.compiler.is_compiling() or bool(height % window_size[0] or width % window_size[1])

    @classmethod
    def cut(cls, window_tokens: Optional[int], *geometry) -> 'list[TritonWindows]':
        """All windows as one piece: on a GPU one launch over all is best."""
        return [cls(*geometry)]

    linear = staticmethod(linear)

    def read(self, x_BHWC: Tensor) -> Tensor:
        """(T, C)."""
        return x_BHWC.flatten(0, 2)

    def write(self, y_TC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """See `Windows`."""
        return y_TC.view(x_BHWC.shape)

    def pad(self, x_TC: Tensor) -> Tensor:
        """The tokens, and behind them the zero token that is read where a window reaches over the map."""
        return F.pad(x_TC, (0, 0, 0, 1)) if self.padded else x_TC

    def attend(self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float) -> Tensor:
        """See `Windows`."""
        from .triton import attend_in_windows  # which torch before 2.4 cannot define

        return attend_in_windows(qkv_T3C, bias_hNN, *self.settings, scale)[0]

    def per_token(self, values_B: Tensor) -> Tensor:
        """(T, 1)."""
        return values_B[:, None].expand(-1, self.tokens_per_image).reshape(-1, 1)

    def per_image(self, x_TC: Tensor) -> Tensor:
        """(B, H*W, C)."""
        return x_TC.view(-1, self.tokens_per_image, x_TC.shape[-1])
