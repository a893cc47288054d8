"""The attention weights of a forward, block by block, and what tokens see through several blocks.

A usual forward keeps no attention weights. `attention_maps` runs one by a backend whose windows keep them.

Layout: B batch, H W height and width of a map, L windows of all images, N places of a window, h heads, C channels.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..backends.graph import Graph, RolledWindows
from ..backends.protocol import Windows
from ..models.pyramid import SwinPyramid
from ..windows.grid import Geometry, Size


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one block.

    Attributes:
        stage, block: their numbers, from 1; block 2 of stage 1 is `stages.0.blocks.1`.
        weights_LhNN: of each window and head, how much each query (row) takes of each key; rows sum to 1, those of
            padding mean nothing. The windows are those of the rolled map, row by row, image after image.
        token_at_LN: the token at each place of each window, counted over the maps of the batch, (b * H + y) * W + x;
            -1 for padding.
        batch: B.
        size: (H, W), without padding.
        window_size: (Wh, Ww).
        shift: (rows, columns); (0, 0) for none.
    """

    stage: int
    block: int
    weights_LhNN: Tensor
    token_at_LN: Tensor
    batch: int
    size: Size
    window_size: Size
    shift: Size

    def number_of(self, y: int, x: int, image: int = 0) -> int:
        """The number, as in `token_at_LN`, of the token in row `y` and column `x`.

        Raises:
            ValueError: if there is no such token.
        """
        H, W = self.size
        if not (0 <= y < H and 0 <= x < W and 0 <= image < self.batch):
            raise ValueError(
                f'there is no token in row {y}, column {x} of image {image}: {self.batch} images have {H}x{W} tokens'
            )
        return (image * H + y) * W + x

    def of_token(self, y: int, x: int, image: int = 0) -> Tensor:
        """Where the token in row `y` and column `x` looks: (h, H, W).

        Each head sums to 1, less what goes to padding.

        Raises:
            ValueError: if there is no such token.
        """
        H, W = self.size
        window, place = (self.token_at_LN == self.number_of(y, x, image)).nonzero()[0].tolist()
        tokens_N, weights_hN = self.token_at_LN[window], self.weights_LhNN[window, :, place]
        there = tokens_N >= 0
        map_hT = weights_hN.new_zeros(len(weights_hN), H * W)
        map_hT[:, tokens_N[there] - image * H * W] = weights_hN[:, there]
        return map_hT.view(-1, H, W)

    def pull_back(self, share_BHW: Tensor) -> Tensor:
        """How much of the block's output, weighted by `share_BHW`, came from each input token.

        The mean of the heads, and the shortcut, by half: attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928,
        equation 1). What goes to padding is lost.
        """
        share_T = share_BHW.flatten()
        padded_T = torch.cat([share_T, share_T.new_zeros(1)])
        from_LN = torch.einsum('lq,lqk->lk', padded_T[self.token_at_LN], self.weights_LhNN.mean(1))
        attended_T = torch.zeros_like(padded_T).index_put((self.token_at_LN.flatten(),), from_LN.flatten(), True)
        return (0.5 * share_T + 0.5 * attended_T[:-1]).view_as(share_BHW)


def attention_maps(model: nn.Module, images_BCHW: Tensor, shift: bool = True) -> list[AttentionMap]:
    """The attention weights of every block, in one forward without gradients, in eval mode; the model stays as it is.

    The weights of all blocks are in memory at once: for Swin-T at 800x1344 they are 0.5 GB an image in float32.

    Args:
        model: a `SwinBackbone` or `SwinV2Backbone`, or a model that has one.
        images_BCHW: the images as the backbone takes them, normalised.
        shift: False leaves out the shift in every block, to see what it is good for.

    Returns:
        Those of the stages that the backbone runs, from the first block on.

    Raises:
        ValueError: if the model has no such backbone, or more than one, or a block whose attention is not of this
            package.

    Examples:
        >>> import torch
        >>> from swin_backbone import SwinBackbone
        >>> from swin_backbone.pictures import attention_maps
        >>> maps = attention_maps(SwinBackbone(arch='nano'), torch.rand(1, 3, 56, 56))
        >>> maps[0].weights_LhNN.shape  # block 1 of stage 1: windows, heads, queries, keys
        torch.Size([4, 2, 49, 49])
        >>> maps[0].of_token(3, 5).shape  # where the token in row 3, column 5 looks: heads, height, width
        torch.Size([2, 14, 14])
    """
    backbone = find_backbone(model)
    recorders = [_Recorder(shift) for _ in backbone.stages]
    with _in_eval_mode(backbone), _computed_by(backbone, recorders), torch.no_grad():
        backbone(images_BCHW)
    maps = []
    for stage_index, (stage, recorder) in enumerate(zip(backbone.stages, recorders)):
        if stage_index > max(backbone.out_indices):
            break
        if len(recorder.recorded) != len(stage.blocks) or any(w.weights_LhNN is None for w in recorder.recorded):
            raise ValueError(f'stages.{stage_index} has a block whose attention is not of this package')
        maps += [windows.attention_map(stage_index + 1, number) for number, windows in enumerate(recorder.recorded, 1)]
    return maps


def receptive_fields(maps: Sequence[AttentionMap], y: int, x: int, image: int = 0) -> list[Tensor]:
    """What a token sees of the map after 1, 2, ... of the blocks in `maps`, which are of one stage: each (H, W).

    Attention rolled out over the first k blocks, for k from 1 on, see `AttentionMap.pull_back`.

    Raises:
        ValueError: if the maps are not all of one stage, or there is no such token.
    """
    if len({attention.stage for attention in maps}) != 1:
        raise ValueError(f'maps must be of one stage, got stages {sorted({a.stage for a in maps})}')
    fields = []
    for count in range(1, len(maps) + 1):
        share_BHW = maps[0].weights_LhNN.new_zeros(maps[0].batch, *maps[0].size)
        share_BHW.view(-1)[maps[0].number_of(y, x, image)] = 1
        for attention in reversed(maps[:count]):
            share_BHW = attention.pull_back(share_BHW)
        fields.append(share_BHW[image])
    return fields


def find_backbone(model: nn.Module) -> SwinPyramid:
    """The one backbone of this package in a model.

    Raises:
        ValueError: if there is none, or more than one.
    """
    found = [module for module in model.modules() if isinstance(module, SwinPyramid)]
    if len(found) != 1:
        raise ValueError(
            f'model must be or have one SwinBackbone or SwinV2Backbone, got a {type(model).__name__} with {len(found)}'
        )
    return found[0]


def strides_of(model: nn.Module) -> list[int]:
    """The side in pixels of a token of each stage, in a model with a backbone of this package."""
    backbone = find_backbone(model)
    merges = [getattr(stage, 'downsample', None) for stage in backbone.stages]
    strides = [backbone.patch_embed.projection.stride[0]]
    strides += [merge.stride for merge in merges if merge is not None]
    return [math.prod(strides[: index + 1]) for index in range(len(strides))]


class _RecordedWindows(RolledWindows):
    """Windows that keep their attention weights."""

    def __init__(self, geometry: Geometry):
        super().__init__(geometry)
        self.device = geometry.device
        self.weights_LhNN: Optional[Tensor] = None

    def attend(
        self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Any = None
    ) -> Tensor:
        q, k, v = self.to_windows(qkv_BHW3C).unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias = bias_hNN if self.mask_L1NN is None else bias_hNN.masked_fill(~self.mask_L1NN, -torch.inf)
        self.weights_LhNN = torch.softmax((q * scale) @ k.transpose(-2, -1) + bias, dim=-1, dtype=q.dtype)
        return self.to_tokens((self.weights_LhNN @ v).transpose(1, 2).flatten(2))

    def attention_map(self, stage: int, block: int) -> AttentionMap:
        assert self.weights_LhNN is not None
        H, W = self.size
        number_BHW1 = torch.arange(1, self.batch * H * W + 1, device=self.device).view(self.batch, H, W, 1)
        token_at_LN = self.to_windows(self.pad(number_BHW1))[..., 0] - 1
        return AttentionMap(
            stage, block, self.weights_LhNN, token_at_LN, self.batch, self.size, self.window_size, self.shift
        )


class _Recorder(Graph):
    """A backend that remembers the windows of a stage's blocks."""

    name = 'recorder'

    def __init__(self, shift: bool):
        self.shift, self.recorded = shift, list[_RecordedWindows]()

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        self.recorded.append(_RecordedWindows(geometry if self.shift else geometry._replace(shift=(0, 0))))
        return self.recorded[-1]


@contextmanager
def _computed_by(backbone: SwinPyramid, recorders: list[_Recorder]) -> Iterator[None]:
    options = [stage.options for stage in backbone.stages]
    try:
        for stage, recorder in zip(backbone.stages, recorders):
            stage.options = stage.options._replace(backend=recorder)
        yield
    finally:
        for stage, of_before in zip(backbone.stages, options):
            stage.options = of_before


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    try:
        yield model.eval()  # type: ignore[misc]
    finally:
        for module, mode in training.items():
            module.training = mode
