"""Convolutions behind a Swin on a CPU, with maps in channels_last memory. Parameters stay in place in memory."""

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.detection.convolution import convolve, takes_maps
from ...kernels.native.memory import Cache, find_cache
from ...modes import find_tracer

SETTINGS = dict(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, padding_mode='zeros')


class Conv2d(nn.Conv2d):
    """An `nn.Conv2d` of channels_last maps."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, H', W')."""
        return super().forward(make_channels_last(input))


class ConvTranspose2d(nn.ConvTranspose2d):
    """An `nn.ConvTranspose2d` of channels_last maps."""

    def forward(self, input: Tensor, output_size: Optional[list[int]] = None) -> Tensor:
        """(B, C, H, W) to (B, N, H', W')."""
        return super().forward(make_channels_last(input), output_size)


class Conv3x3(nn.Conv2d):
    """An `nn.Conv2d` of `SETTINGS`. The compiled library computes it where torch takes more time."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, H, W)."""
        return convolve_3x3(make_channels_last(input), self.weight, self.bias, find_cache(self))


def make_channels_last(x: Tensor) -> Tensor:
    """Return maps in channels_last memory.

    In a graph and under `torch.func` the memory format does not change. A map without a batch, (C, H, W), has none.
    """
    is_changed = x.dim() == 4 and find_tracer(x) is None
    return x.contiguous(memory_format=torch.channels_last) if is_changed else x


def use_channels_last(module: nn.Module) -> None:
    """Replace the class of a convolution; parameters and hooks stay. Other modules do not change."""
    subclasses = {nn.Conv2d: Conv3x3 if is_conv_3x3(module) else Conv2d, nn.ConvTranspose2d: ConvTranspose2d}
    module.__class__ = subclasses.get(type(module), type(module))


def is_conv_3x3(conv: Any) -> bool:
    """Return whether a module is an `nn.Conv2d` or `Conv3x3` of `SETTINGS`."""
    return type(conv) in (nn.Conv2d, Conv3x3) and all(getattr(conv, name) == value for name, value in SETTINGS.items())


def convolve_3x3(x: Tensor, weight: Tensor, bias: Optional[Tensor], cache: Optional[Cache] = None) -> Tensor:
    """Return `F.conv2d(x, weight, bias, padding=1)`, up to rounding. `cache` keeps packed weights."""
    if takes_maps(x, weight, bias):
        return convolve(x, weight, bias, cache)
    return F.conv2d(x, weight, bias, padding=1)
