"""The MLP of a block, and stochastic depth (Huang et al. 2016, arXiv 1603.09382). Names and numbers are mmcv's."""

from typing import Any

import torch
from torch import Tensor, nn

from .norm import build_activation


class MLP(nn.Module):
    """Two linear layers with an activation between them. mmcv's `FFN` has the same parameter names.

    Args:
        embed_dims: channels of input and output.
        hidden_channels: channels of the activation.
        act_cfg: the activation.
        drop_rate: dropout after each linear layer.
    """

    def __init__(self, embed_dims: int, hidden_channels: int, act_cfg: dict[str, Any], drop_rate: float = 0.0):
        super().__init__()
        first = nn.Linear(embed_dims, hidden_channels), build_activation(act_cfg), nn.Dropout(drop_rate)
        self.layers = nn.Sequential(
            nn.Sequential(*first), nn.Linear(hidden_channels, embed_dims), nn.Dropout(drop_rate)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., embed_dims) to the same shape."""
        return self.layers(x)


class DropPath(nn.Module):
    """Replace the samples of a batch by zeros with probability `drop_prob` in training, and scale the others.

    A random number is drawn for each sample, in the dtype and on the device of the input.
    """

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`, whose first dimension is the batch."""
        if not self.training or self.drop_prob == 0:
            return x
        share = 1 - self.drop_prob  # of samples that stay
        shape = x.shape[0], *(1,) * (x.ndim - 1)
        stays = (torch.rand(shape, dtype=x.dtype, device=x.device) + share).floor()
        return x / share * stays

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob}'
