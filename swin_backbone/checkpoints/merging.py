"""The order in which patch merging concatenates the channels of 2 x 2 neighbours.

A map's neighbours (dy, dx) with C channels each become 4 C channels:

- 'channels', of mmdet, mmseg and mmpretrain, is `nn.Unfold`'s: (C, dy, dx), each channel's four neighbours together;
- 'columns', of microsoft/Swin-Transformer, timm, torchvision and transformers, is (dx, dy, C): they concatenate
  [0::2, 0::2], [1::2, 0::2], [0::2, 1::2], [1::2, 1::2] (timm by a permutation that amounts to the same).

The weights that see merged channels are the norm over them and the reduction's columns.
"""

from torch import Tensor


def reorder_merging(weights: dict[str, Tensor], source: str, target: str) -> dict[str, Tensor]:
    """Weights under their names here, with merged channels in the order `target` instead of `source`."""
    if source == target:
        return weights
    reorder = _columns_to_channels if target == 'channels' else _channels_to_columns
    return {key: reorder(value) if _sees_merged_channels(key, weights) else value for key, value in weights.items()}


def _sees_merged_channels(key: str, weights: dict[str, Tensor]) -> bool:
    owner, downsample, leaf = key.rpartition('.downsample.')
    reduction = weights.get(f'{owner}.downsample.reduction.weight')
    if not downsample or reduction is None:
        return False
    # A norm behind the reduction, as in Swin V2, is as wide as what the reduction gives, and has no such order.
    return leaf == 'reduction.weight' or weights[key].shape[-1] == reduction.shape[-1]


def _columns_to_channels(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (2, 2, -1))  # ..., dx, dy, C
    return x.movedim(-1, -3).transpose(-1, -2).flatten(-3).contiguous()


def _channels_to_columns(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (-1, 2, 2))  # ..., C, dy, dx
    return x.transpose(-1, -2).movedim(-3, -1).flatten(-3).contiguous()
