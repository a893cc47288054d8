"""The library's layers in torch operations, for second derivatives and for batches of gradients.

Layout: B batch, H W height and width of a map, C channels, N channels out.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch.nn.functional as F
from torch import Tensor

from ...windows.grid import Windows
from ..attention import attend
from ..cosine import normalise_qk


def block_by_torch(x_BHWC: Tensor, w: Any, settings: Any, windows: Windows) -> Tensor:
    """Return the output of a Swin block, see `layers.block`."""
    C, eps = x_BHWC.shape[-1:], settings.eps

    def project(tokens: Tensor) -> Tensor:
        qkv = F.linear(tokens, w.qkv_weight, w.qkv_bias)
        return qkv if w.cosine_scale_h is None else normalise_qk(qkv, w.cosine_scale_h)

    def attention(x: Tensor) -> Tensor:
        y = attend(x, project, w.position_bias_hNN, settings.scale, windows, backend='torch')
        return F.linear(y, w.proj_weight, w.proj_bias)

    def mlp(x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, w.fc1_weight, w.fc1_bias)), w.fc2_weight, w.fc2_bias)

    def drop(branch: Tensor, index: int) -> Tensor:
        return branch if w.drop_path_2B is None else branch * w.drop_path_2B[index, :, None, None, None]

    norm1, norm2 = (w.norm1_weight, w.norm1_bias, eps[0]), (w.norm2_weight, w.norm2_bias, eps[1])
    if w.cosine_scale_h is None:
        x_BHWC = x_BHWC + drop(attention(F.layer_norm(x_BHWC, C, *norm1)), 0)
        return x_BHWC + drop(mlp(F.layer_norm(x_BHWC, C, *norm2)), 1)
    x_BHWC = x_BHWC + drop(F.layer_norm(attention(x_BHWC), C, *norm1), 0)
    x_BHWC = x_BHWC + drop(F.layer_norm(mlp(x_BHWC), C, *norm2), 1)
    return x_BHWC if len(eps) == 2 else F.layer_norm(x_BHWC, C, w.norm3_weight, w.norm3_bias, eps[2])


def embed_by_torch(image_BCHW: Tensor, weights: Sequence[Any], eps: Optional[float]) -> Tensor:
    """Return the tokens of images, see `layers.embed`.

    Args:
        weights: weight and bias of the projection, weight and bias of the norm.
    """
    weight, bias, norm_weight, norm_bias = weights
    rows, columns = weight.shape[2:]
    padding = 0, -image_BCHW.shape[3] % columns, 0, -image_BCHW.shape[2] % rows
    y_BHWN = F.conv2d(F.pad(image_BCHW, padding), weight, bias, stride=(rows, columns)).permute(0, 2, 3, 1)
    return y_BHWN if eps is None else F.layer_norm(y_BHWN, y_BHWN.shape[-1:], norm_weight, norm_bias, eps)


def merge_by_torch(x_BHWC: Tensor, weights: Sequence[Any], eps: Optional[float], post_norm: bool) -> Tensor:
    """Return merged neighbours, see `layers.merge`.

    Args:
        weights: see `embed_by_torch`; the projection has no bias.
    """
    weight, _, norm_weight, norm_bias = weights

    def normalise(x: Tensor) -> Tensor:
        return x if eps is None else F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)

    H, W = x_BHWC.shape[1:3]
    x_BHWC = F.pad(x_BHWC, (0, 0, 0, W % 2, 0, H % 2)).unfold(1, 2, 2).unfold(2, 2, 2).flatten(3)
    return normalise(F.linear(x_BHWC, weight)) if post_norm else F.linear(normalise(x_BHWC), weight)
