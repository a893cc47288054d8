"""Scaled cosine attention's query and key (Liu et al. 2022, arXiv 2111.09883, equation 2): what is left is a product.

Layout: T tokens, C channels, h heads, d channels of a head.
"""

import math
from typing import Callable

import torch
from torch import Tensor

from .sums import GradientSums

MAX_LOGIT_SCALE = math.log(100)
EPS = 1e-12  # of torch.nn.functional.normalize


def cosine_scale(logit_scale_h11: Tensor) -> Tensor:
    """By what a head's cosines are multiplied: exp(logit_scale), at most 100: (h,), in float32 at least."""
    scale_h = logit_scale_h11.flatten()
    return scale_h.to(_wide(scale_h)).clamp(max=MAX_LOGIT_SCALE).exp()


def normalise_qk(qkv_T3C: Tensor, scale_h: Tensor) -> Tensor:
    """Queries of length scale, keys of length 1 and values as they are: (..., 3C), in the dtype given.

    Lengths are taken in float32 at least, in which no square overflows. A vector shorter than 1e-12, such as the
    key of padding, has no direction: it becomes 0, and has no gradient.
    """
    qkv_T3hd = qkv_T3C.unflatten(-1, (3, len(scale_h), -1))
    return (qkv_T3hd * _factors(qkv_T3hd, scale_h)).to(qkv_T3C.dtype).flatten(-3)


def normalise_qk_vjp(qkv_T3C: Tensor, scale_h: Tensor, sums: GradientSums) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`normalise_qk`, and its gradient; that of the scale is added to `sums` as 'cosine_scale_h'."""
    qkv_T3hd = qkv_T3C.unflatten(1, (3, len(scale_h), -1))
    factors_T3h1 = _factors(qkv_T3hd, scale_h)
    y_T3hd = (qkv_T3hd * factors_T3h1).to(qkv_T3C.dtype)

    def vjp(grad_T3C: Tensor) -> Tensor:
        grad_T3hd = grad_T3C.unflatten(1, (3, len(scale_h), -1))
        q_and_k = slice(0, 2)
        along_T2h1 = (grad_T3hd[:, q_and_k] * y_T3hd[:, q_and_k]).sum(-1, keepdim=True, dtype=factors_T3h1.dtype)
        lengths_2h1 = torch.stack([scale_h, torch.ones_like(scale_h)])[..., None].to(along_T2h1.dtype)
        sums.add('cosine_scale_h', (along_T2h1[:, 0] / lengths_2h1[0]).sum((0, 2)))
        grad = grad_T3hd * factors_T3h1  # below, less what is along the vector: its length is fixed
        grad[:, q_and_k] -= y_T3hd[:, q_and_k] * (along_T2h1 * factors_T3h1[:, q_and_k] / lengths_2h1.square())
        return grad.to(grad_T3C.dtype).flatten(1)

    return y_T3hd.flatten(1), vjp


def _factors(qkv_T3hd: Tensor, scale_h: Tensor) -> Tensor:
    """What each query, key and value is multiplied by: (..., 3, h, 1)."""
    dtype = _wide(qkv_T3hd)
    lengths_T2h = torch.linalg.vector_norm(qkv_T3hd[..., :2, :, :], dim=-1, dtype=dtype)
    targets_2h = torch.stack([scale_h, torch.ones_like(scale_h)]).to(dtype)
    factors_T2h = torch.where(lengths_T2h > EPS, targets_2h / lengths_T2h.clamp(min=EPS), 0.0)
    return torch.cat([factors_T2h, torch.ones_like(factors_T2h[..., :1, :])], dim=-2)[..., None]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
