"""Fake versions of the operators for torch.compile and export: they give shapes and dtypes.

This module is imported when the operators are loaded.

Layout: B batch, H W height and width, C channels.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from .library import PRODUCTS
from .operators import packed_size

register = torch.library.register_fake


@register('swin_backbone::pack_linear')
def _pack_linear(weight: Tensor, dtype: torch.dtype, unit: int, transposed: bool = False) -> Tensor:
    outputs, inputs = len(weight), weight[0].numel()
    if transposed:
        outputs, inputs = inputs, outputs
    dtype = PRODUCTS.get(dtype, dtype)
    return weight.new_empty(packed_size(dtype, outputs, inputs), dtype=dtype)


@register('swin_backbone::block')
def _block(x_BHWC: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x_BHWC)


@register('swin_backbone::block_saving')
def _block_saving(x_BHWC: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    groups, saved_bytes = (torch.library.get_ctx().new_dynamic_size() for _ in range(2))
    return torch.empty_like(x_BHWC), x_BHWC.new_empty(groups, saved_bytes, dtype=torch.uint8)


@register('swin_backbone::block_')
def _block_in_place(x_BHWC: Tensor, *_: Any) -> None:
    return None


@register('swin_backbone::block_backward')
def _block_backward(
    x_BHWC: Tensor,
    grad_BHWC: Tensor,
    packed: list[Tensor],
    transposed: list[Tensor],
    vectors: list[Optional[Tensor]],
    position_bias: Tensor,
    *_: Any,
) -> list[Tensor]:
    C = x_BHWC.shape[-1]
    D = packed[2].numel() // packed_size(packed[2].dtype, 1, C)
    linear = [(3 * C, C), (C, C), (D, C), (C, D)]
    of_vectors = [(C,), (C,), (3 * C,), (C,), (C,), (C,), (D,), (C,), (C,), (C,)]
    shapes = [x_BHWC.shape, *linear, *of_vectors, position_bias.shape, position_bias.shape[:1]]
    return [x_BHWC.new_empty(shape) for shape in shapes]


@register('swin_backbone::embed')
def _embed(image_BCHW: Tensor, packed: Tensor, *others: Any) -> Tensor:
    *_, patch = others
    B, channels, H, W = image_BCHW.shape
    outputs = packed.numel() // packed_size(packed.dtype, 1, channels * patch[0] * patch[1])
    return image_BCHW.new_empty(B, -(-H // patch[0]), -(-W // patch[1]), outputs)


@register('swin_backbone::embed_backward')
def _embed_backward(
    image_BCHW: Tensor, grad_BHWC: Tensor, packed: Tensor, transposed: Optional[Tensor], *others: Any
) -> list[Tensor]:
    *_, eps, patch = others
    channels, K = grad_BHWC.shape[-1], image_BCHW.shape[1] * patch[0] * patch[1]
    return _project_backward(image_BCHW, grad_BHWC, transposed, K, 0 if eps is None else channels)


@register('swin_backbone::merge')
def _merge(x_BHWC: Tensor, packed: Tensor, *_: Any) -> Tensor:
    B, H, W, C = x_BHWC.shape
    return x_BHWC.new_empty(B, -(-H // 2), -(-W // 2), packed.numel() // packed_size(packed.dtype, 1, 4 * C))


@register('swin_backbone::merge_backward')
def _merge_backward(
    x_BHWC: Tensor, grad_BHWC: Tensor, packed: Tensor, transposed: Optional[Tensor], *others: Any
) -> list[Tensor]:
    *_, eps, post_norm = others
    K = 4 * x_BHWC.shape[-1]
    normed = 0 if eps is None else grad_BHWC.shape[-1] if post_norm else K
    return _project_backward(x_BHWC, grad_BHWC, transposed, K, normed)


def _project_backward(x: Tensor, grad: Tensor, transposed: Optional[Tensor], K: int, normed: int) -> list[Tensor]:
    channels = grad.shape[-1]
    shapes = [x.shape if transposed is not None else (0,), (channels, K), (channels,), (normed,), (normed,)]
    return [grad.new_empty(shape) for shape in shapes]


@register('swin_backbone::output_norm')
def _output_norm(x_BHWC: Tensor, *_: Any) -> Tensor:
    B, H, W, C = x_BHWC.shape
    return x_BHWC.new_empty(B, C, H, W)


@register('swin_backbone::output_norm_backward')
def _output_norm_backward(x_BHWC: Tensor, *_: Any) -> list[Tensor]:
    C = x_BHWC.shape[-1]
    return [x_BHWC.new_empty(shape) for shape in (x_BHWC.shape, (C,), (C,))]
