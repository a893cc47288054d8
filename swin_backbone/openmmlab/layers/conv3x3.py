"""Convolutions behind a Swin on a CPU."""

from collections.abc import Mapping
from typing import Any, Optional

from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.native.convolution import TILES, convolve, takes_maps
from ...kernels.weight_cache import WeightCache

SETTINGS = dict(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, padding_mode='zeros')


class Conv3x3(nn.Conv2d):
    """An `nn.Conv2d` of `SETTINGS`. The compiled library computes it where torch takes more time.

    `use_winograd` makes it from a convolution of a model, with the same parameters and hooks.
    """

    caches: dict[int, WeightCache]  # by the side of tiles

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, H, W)."""
        return conv_3x3(input, self.weight, self.bias, self.caches)


def use_winograd(conv: nn.Module) -> None:
    """Turn a convolution of `SETTINGS` into a `Conv3x3`."""
    if is_plain(conv):
        conv.__class__ = Conv3x3
        conv.caches = {tile: WeightCache() for tile in TILES}  # type: ignore[assignment]


def is_plain(conv: Any) -> bool:
    """Return whether a module is an `nn.Conv2d` or `Conv3x3` of `SETTINGS`."""
    return type(conv) in (nn.Conv2d, Conv3x3) and all(getattr(conv, name) == value for name, value in SETTINGS.items())


def conv_3x3(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], caches: Optional[Mapping[int, WeightCache]] = None
) -> Tensor:
    """Return `F.conv2d(x, weight, bias, padding=1)`, up to rounding."""
    if takes_maps(x, weight, bias):
        return convolve(x, weight, bias, caches)
    return F.conv2d(x, weight, bias, padding=1)
