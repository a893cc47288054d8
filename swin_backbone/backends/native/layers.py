"""The compiled library's layers as functions of tensors: block, patch embedding, patch merging, output norm.

Each function takes float32 maps and weights, has gradients, and returns float32 maps. Under `dtype=torch.bfloat16` the
matrix products are in bfloat16, as autocast computes them. Sums, norms and softmax are in float32.

Layout: B batch, H W height and width of a map, C channels, D hidden channels, h heads, N places of a window.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ...compat import fake_mode, operators_are_watched
from ...windows.grid import Windows
from ..weight_cache import WeightCache
from . import operators
from .gradients import operate
from .torch_layers import block_by_torch, embed_by_torch, merge_by_torch

# The order of vectors in the operators' arguments, and of the gradients that `block_backward` returns after x's.
VECTORS = (
    *('norm1_weight', 'norm1_bias', 'qkv_bias', 'proj_bias', 'norm2_weight', 'norm2_bias'),
    *('fc1_bias', 'fc2_bias', 'norm3_weight', 'norm3_bias'),
)
LINEAR = ('qkv_weight', 'proj_weight', 'fc1_weight', 'fc2_weight')
GRADIENTS = (*LINEAR, *VECTORS, 'position_bias_hNN', 'cosine_scale_h')


class BlockWeights(NamedTuple):
    """The tensors of a Swin block; the weights of linear layers are (out, in)."""

    norm1_weight: Optional[Tensor]
    norm1_bias: Optional[Tensor]
    qkv_weight: Tensor
    qkv_bias: Optional[Tensor]
    position_bias_hNN: Tensor
    proj_weight: Tensor
    proj_bias: Optional[Tensor]
    norm2_weight: Optional[Tensor]
    norm2_bias: Optional[Tensor]
    fc1_weight: Tensor
    fc1_bias: Optional[Tensor]
    fc2_weight: Tensor
    fc2_bias: Optional[Tensor]
    drop_path_2B: Optional[Tensor] = None  # the factor of each branch and image; None: 1
    # Swin V2 alone:
    cosine_scale_h: Optional[Tensor] = None  # the factor on cosines of query and key; None: dot products
    norm3_weight: Optional[Tensor] = None
    norm3_bias: Optional[Tensor] = None


class BlockSettings(NamedTuple):
    """The numbers of a Swin block beside its tensors."""

    scale: float  # the factor on q k^T
    eps: tuple[float, ...]  # of norm1, norm2 and, if there is one, norm3


def block(
    x_BHWC: Tensor,
    w: BlockWeights,
    settings: BlockSettings,
    windows: Windows,
    dtype: torch.dtype,
    cache: WeightCache,
    stores: bool = False,
    overwrites: bool = False,
) -> Tensor:
    """Return the output (B, H, W, C) of a Swin block, V1 or V2.

    Args:
        dtype: of the matrix products, float32 or bfloat16.
        cache: of packed weights.
        stores: whether a training step stores more than its input, see `availability.is_stored`.
        overwrites: whether the output may take the memory of the input, where no gradient is recorded.
    """
    x_BHWC = x_BHWC.float().contiguous()
    if not torch.is_grad_enabled():
        arguments = _arguments(w, settings, windows, dtype, cache)
        if overwrites:
            _operators().block_(x_BHWC, *arguments)
            return x_BHWC
        y_BHWC: Tensor = _operators().block(x_BHWC, *arguments)
        return y_BHWC
    stores = stores and any(t is not None and t.requires_grad for t in (x_BHWC, *w))

    def compute(x: Tensor, *weights: Any) -> Sequence[Tensor]:
        arguments = _arguments(BlockWeights(*weights), settings, windows, dtype, cache)
        if stores:
            outputs: Sequence[Tensor] = _operators().block_saving(x, *arguments)
            return outputs
        return (_operators().block(x, *arguments),)

    def gradients(grad: Tensor, _: Sequence[bool], x: Tensor, *stored: Any) -> Sequence[Optional[Tensor]]:
        w = BlockWeights(*stored[: len(BlockWeights._fields)])
        packed, *others = _arguments(w, settings, windows, dtype, cache)
        units = 1, x.shape[-1] // len(w.position_bias_hNN), 1, 1
        transposed = [
            _operators().pack_linear(getattr(w, name), dtype, unit, transposed=True)
            for name, unit in zip(LINEAR, units)
        ]
        of_x, *of_weights = _operators().block_backward(
            x, grad, packed, transposed, *others, stored[-1] if stores else None
        )
        by_name = dict(zip(GRADIENTS, of_weights))
        return of_x, *(by_name.get(name) for name in w._fields)

    def by_torch(x: Tensor, *weights: Any) -> Tensor:
        return block_by_torch(x, BlockWeights(*weights), settings, windows)

    return operate(compute, gradients, by_torch, x_BHWC, *w)


def embed(
    image_BCHW: Tensor,
    weight_NCHW: Tensor,
    bias_N: Optional[Tensor],
    norm: tuple[Optional[Tensor], Optional[Tensor], Optional[float]],
    dtype: torch.dtype,
    cache: WeightCache,
) -> Tensor:
    """Return the tokens (B, ceil(H / patch), ceil(W / patch), N) of images.

    Args:
        weight_NCHW: of the convolution over patches.
        norm: weight, bias and eps of the norm of tokens; an eps of None stands for no norm.
        dtype, cache: see `block`.
    """
    norm_weight, norm_bias, eps = norm
    patch = list(weight_NCHW.shape[2:])

    def compute(image: Tensor, weight: Tensor, *others: Optional[Tensor]) -> Sequence[Tensor]:
        (panels,) = pack(cache, (weight,), dtype, (1,))
        return (_operators().embed(image, panels, *others, eps, patch),)

    def gradients(
        grad: Tensor, needed: Sequence[bool], image: Tensor, weight: Tensor, *others: Optional[Tensor]
    ) -> Sequence[Optional[Tensor]]:
        (panels,) = pack(cache, (weight,), dtype, (1,))
        of_image, of_weight, *of_others = _operators().embed_backward(
            image, grad, panels, _transposed(weight, dtype) if needed[0] else None, *others, eps, patch
        )
        return of_image, of_weight.view_as(weight), *of_others

    def by_torch(image: Tensor, *weights: Any) -> Tensor:
        y_BHWN: Tensor = embed_by_torch(image, weights, eps)
        return y_BHWN

    return operate(compute, gradients, by_torch, image_BCHW.float(), weight_NCHW, bias_N, norm_weight, norm_bias)


def merge(
    x_BHWC: Tensor,
    weight_NC: Tensor,
    norm: tuple[Optional[Tensor], Optional[Tensor], Optional[float]],
    post_norm: bool,
    dtype: torch.dtype,
    cache: WeightCache,
) -> Tensor:
    """Return maps (B, ceil(H / 2), ceil(W / 2), N) of 2 x 2 neighbours, which are concatenated and projected.

    Args:
        weight_NC: (N, 4C), over neighbours in the order of `nn.Unfold`.
        norm: weight, bias and eps; an eps of None stands for no norm.
        post_norm: whether the norm is behind the projection.
        dtype, cache: see `block`.
    """
    norm_weight, norm_bias, eps = norm

    def in_order(*vectors: Optional[Tensor]) -> Sequence[Optional[Tensor]]:
        """Return a norm's vectors in the library's order of neighbours."""
        return vectors if post_norm else [v if v is None else neighbours_first(v) for v in vectors]

    def compute(x: Tensor, weight: Tensor, *vectors: Optional[Tensor]) -> Sequence[Tensor]:
        (panels,) = pack(cache, (weight,), dtype, (1,), neighbours_first)
        return (_operators().merge(x, panels, *in_order(*vectors), eps, post_norm),)

    def gradients(
        grad: Tensor, needed: Sequence[bool], x: Tensor, weight: Tensor, *vectors: Optional[Tensor]
    ) -> Sequence[Optional[Tensor]]:
        (panels,) = pack(cache, (weight,), dtype, (1,), neighbours_first)
        needs_normed = not post_norm and any(needed[2:])  # a norm before the projection gets its gradient from there
        transposed = _transposed(neighbours_first(weight), dtype) if needed[0] or needs_normed else None
        of_x, of_weight, _, *of_norm = _operators().merge_backward(
            x, grad, panels, transposed, *in_order(*vectors), eps, post_norm
        )
        if not post_norm:
            of_norm = [neighbours_last(g) for g in of_norm]
        return of_x, neighbours_last(of_weight), *of_norm

    def by_torch(x: Tensor, *weights: Any) -> Tensor:
        y_BHWN: Tensor = merge_by_torch(x, weights, eps, post_norm)
        return y_BHWN

    return operate(compute, gradients, by_torch, x_BHWC.float().contiguous(), weight_NC, norm_weight, norm_bias)


def output_norm(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Return the layer norm of tokens as the map that necks and heads read: (B, C, H, W), contiguous."""

    def compute(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Sequence[Tensor]:
        return (_operators().output_norm(x, weight, bias, eps),)

    def gradients(
        grad: Tensor, _: Sequence[bool], x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]
    ) -> Sequence[Optional[Tensor]]:
        of_all: Sequence[Optional[Tensor]] = _operators().output_norm_backward(x, grad, weight, bias, eps)
        return of_all

    def by_torch(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps).permute(0, 3, 1, 2)

    return operate(compute, gradients, by_torch, x_BHWC.float().contiguous(), weight, bias)


def _operators() -> Any:
    """Return the operators, or the functions behind them, which take less time to call."""
    return torch.ops.swin_backbone if operators_are_watched() else operators


def pack(
    cache: WeightCache,
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    units: Sequence[int],
    arrange: Callable[[Tensor], Tensor] = torch.Tensor.detach,
) -> list[Tensor]:
    """Return weights (out, in...) in the operators' order, packed again only when a number changes.

    Args:
        units: of each weight, the columns that stay together in a panel; for q, k and v those of a head.
        arrange: puts the weights' inputs in the operator's order.
    """

    def make() -> list[Tensor]:
        return [_operators().pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]

    return made_from(weights, (dtype, *units), make, cache)


def made_from(
    weights: Sequence[Tensor], settings: tuple[Any, ...], make: Callable[[], list[Tensor]], cache: WeightCache
) -> list[Tensor]:
    """Return `make()`, from the cache if settings and numbers of the weights are those of the cached tensors.

    Fused optimizers, `.data` and numpy leave no trace in a tensor. So each call computes a checksum of all weights, in
    a seventh of the time of packing.
    """

    def make_plain() -> list[Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            return make()

    if fake_mode() is not None:  # fake tensors have no numbers
        return make_plain()
    key = *settings, *((w.shape, w.dtype) for w in weights), _operators().checksum(weights)
    made = cache.made  # read once: another thread may replace the entry
    if made is not None and made[0] == key:
        return made[1]
    cache.made = None  # frees the old copy first: there are never two
    tensors = make_plain()
    if _operators().checksum(weights) == key[-1]:  # another thread may write the weights meanwhile
        cache.made = key, tensors
    return tensors


def _transposed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    panels: Tensor = _operators().pack_linear(weight, dtype, 1, transposed=True)
    return panels


def _arguments(
    w: BlockWeights, settings: BlockSettings, windows: Windows, dtype: torch.dtype, cache: WeightCache
) -> tuple[Any, ...]:
    """Return the operators' arguments after the maps."""
    heads, C = len(w.position_bias_hNN), len(w.qkv_weight) // 3
    padding = 1 if windows.mask_padding else 0 if windows.pads_first else 2  # `swin_padding`
    packed = pack(cache, (w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight), dtype, (C // heads, 1, 1, 1))
    return (
        *(packed, [getattr(w, name) for name in VECTORS], w.position_bias_hNN, w.cosine_scale_h, w.drop_path_2B),
        *(heads, list(windows.window_size), list(windows.shift), padding),
        *(settings.scale, list(settings.eps)),
    )


def neighbours_first(weight: Tensor) -> Tensor:
    """Reorder the last dimension from (C, 2, 2), the order of `nn.Unfold`, to (2, 2, C), which moves whole tokens."""
    channels = weight.dim() - 1
    moved: Tensor = weight.unflatten(channels, (-1, 2, 2)).movedim(channels, channels + 2)
    return moved.flatten(channels)


def neighbours_last(weight: Tensor) -> Tensor:
    """Undo `neighbours_first`."""
    channels = weight.dim() - 1
    moved: Tensor = weight.unflatten(channels, (2, 2, weight.shape[-1] // 4)).movedim(channels + 2, channels)
    return moved.flatten(channels)
