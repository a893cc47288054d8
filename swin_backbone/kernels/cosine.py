"""Query and key of scaled cosine attention (Liu et al. 2022, arXiv 2111.09883, equation 2).

After `normalise_qk`, a dot product of query and key is the scaled cosine.

Layout: T tokens, C channels, h heads, d channels of a head.
"""

import math

import torch
from torch import Tensor

MAX_LOGIT_SCALE = math.log(100)
EPS = 1e-12  # of torch.nn.functional.normalize


def cosine_scale(logit_scale_h11: Tensor) -> Tensor:
    """Return the factors on cosines, exp(logit_scale), at most 100: (h,), in float32 at least."""
    scale_h = logit_scale_h11.flatten()
    return scale_h.to(_wide(scale_h)).clamp(max=MAX_LOGIT_SCALE).exp()


def normalise_qk(qkv_T3C: Tensor, scale_h: Tensor) -> Tensor:
    """Return queries of length scale, keys of length 1 and unchanged values: (..., 3C), in the input's dtype.

    Lengths are computed in float32 at least: no square overflows. A vector shorter than 1e-12, for example a key of
    padding, has no direction. The result for a short vector is 0, without gradient.
    """
    qkv_T3hd, dtype = qkv_T3C.unflatten(-1, (3, len(scale_h), -1)), _wide(qkv_T3C)
    qk_T2hd = qkv_T3hd[..., :2, :, :]
    lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    is_short_T2h = lengths_T2h <= EPS
    # The second derivative of a zero's length is NaN, even if no result depends on the length. A traced graph serves
    # grad mode and no_grad.
    if torch.is_grad_enabled() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        qk_T2hd = qk_T2hd.masked_fill(is_short_T2h[..., None], 1.0)
        lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    targets_2h = torch.stack([scale_h, torch.ones_like(scale_h)]).to(dtype)
    factors_T2h = (targets_2h / lengths_T2h).masked_fill(is_short_T2h, 0.0)
    factors_T3h1 = torch.cat([factors_T2h, torch.ones_like(factors_T2h[..., :1, :])], dim=-2)[..., None]
    normalised_T3hd: Tensor = (qkv_T3hd * factors_T3h1).to(qkv_T3C.dtype)
    return normalised_T3hd.flatten(-3)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
