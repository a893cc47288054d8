"""Compiled operators for CPUs: a whole block, patch embedding, patch merging, output norms, with their gradients.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ...compat import fake_mode, operators_are_watched
from ...windows.grid import Geometry
from ..eager import Eager
from ..functions import patches
from ..functions.block import BLOCKS
from ..functions.patches import neighbours_first, neighbours_in_order, neighbours_last
from ..protocol import BlockSettings, BlockWeights, EmbeddingWeights, MergingWeights, Plan, Request, Windows
from ..weight_cache import WeightCache
from . import operators
from .availability import why_not_in
from .gradients import operate
from .operators import LARGEST_WINDOW

HEAD_DIMS = range(8, 65, 8)
# How many columns must stay together in a panel, for each weight: for q, k and v, those of a head.
Units = Sequence[int]
Outputs = Sequence[Tensor]  # of an operator: its output, and what it stores for backward
Gradients = Sequence[Optional[Tensor]]
# With fewer channels, or in bfloat16, a block's values are computed again for backward as fast as they are written and
# read.
SAVED_CHANNELS = 384
# The order of weights in the operators' arguments, and of the gradients that `block_backward` returns after that of x.
VECTORS = (
    *('norm1_weight', 'norm1_bias', 'qkv_bias', 'proj_bias', 'norm2_weight', 'norm2_bias'),
    *('fc1_bias', 'fc2_bias', 'norm3_weight', 'norm3_bias'),
)
GRADIENTS = (
    *('qkv_weight', 'proj_weight', 'fc1_weight', 'fc2_weight', *VECTORS),
    *('position_bias_hNN', 'cosine_scale_h'),
)


class Native:
    """The compiled operators, for float32 maps and weights; under autocast their matrix products are in bfloat16."""

    name = 'native'

    def why_not(self, request: Request) -> Optional[str]:
        """See `Backend`."""
        (Wh, Ww), head_dim = request.window_size, request.head_dim
        if request.kind == 'mlp':
            return 'The compiled operators have no block of Swin-MLP.'
        if request.recorded is not None:
            return f'The compiled operators are no part of what {request.recorded} records.'
        if request.device.type != 'cpu':
            return f'The compiled operators are for CPUs, not {request.device.type}.'
        if isinstance(request.strip_tokens, int):
            return (
                f'The compiled operators cut maps themselves, and strip_tokens={request.strip_tokens} asks for strips.'
            )
        if max(Wh, Ww) > LARGEST_WINDOW:
            return f'The compiled operators take windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {Wh}x{Ww}.'
        if head_dim not in HEAD_DIMS:
            return f'The compiled operators take heads of 8, 16, ... 64 channels, not {head_dim}.'
        if not request.has_all_heads:
            return 'The compiled operators take all heads of a block, and some were taken out.'
        if request.hidden_channels % 8:
            return f'The compiled operators take MLPs of a multiple of 8 channels, not {request.hidden_channels}.'
        if request.has_dropout:
            return 'The compiled operators have no dropout, and a dropout rate is above 0.'
        if not request.exact_gelu:
            return 'The compiled operators have one activation, exact GELU.'
        if not request.weight_dtypes <= {torch.float32}:
            return 'The compiled operators take weights in float32.'
        if not torch.backends.mkldnn.enabled:
            return 'torch.backends.mkldnn is switched off, and with it the compiled operators.'
        return why_not_in(request.dtype)

    def embed(
        self, image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float], plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        dtype, patch = _dtype(plan), list(w.projection_weight.shape[2:])

        def compute(image: Tensor, weight: Tensor, *others: Optional[Tensor]) -> Outputs:
            (panels,) = pack(cache, (weight,), dtype, (1,))
            return (_operators().embed(image, panels, *others, eps, patch),)

        def gradients(
            grad: Tensor, needed: Sequence[bool], image: Tensor, weight: Tensor, *others: Optional[Tensor]
        ) -> Gradients:
            (panels,) = pack(cache, (weight,), dtype, (1,))
            of_image, of_weight, *of_others = _operators().embed_backward(
                image, grad, panels, _transposed(weight, dtype) if needed[0] else None, *others, eps, patch
            )
            return of_image, of_weight.view_as(weight), *of_others

        def by_torch(image: Tensor, *weights: Any) -> Tensor:
            return patches.embed(image.permute(0, 2, 3, 1), EmbeddingWeights(*weights), eps)

        return operate(compute, gradients, by_torch, image_BCHW.float(), *w)

    def block(
        self, x_BHWC: Tensor, w: Any, settings: BlockSettings, geometry: Geometry, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`. Sums, norms, softmax and the block's output are float32."""
        dtype, x_BHWC = _dtype(plan), x_BHWC.float().contiguous()
        if not torch.is_grad_enabled():
            arguments = _arguments(w, settings, geometry, dtype, cache)
            if not plan.overwrite:
                y_BHWC: Tensor = _operators().block(x_BHWC, *arguments)
                return y_BHWC
            _operators().block_(x_BHWC, *arguments)
            return x_BHWC
        saves = plan.strip_tokens is None and not plan.with_cp and self.saves(dtype, x_BHWC.shape[3])
        saves = saves and any(t is not None and t.requires_grad for t in (x_BHWC, *w))

        def compute(x: Tensor, *weights: Any) -> Outputs:
            arguments = x, *_arguments(BlockWeights(*weights), settings, geometry, dtype, cache)
            if saves:
                saving: Outputs = _operators().block_saving(*arguments)
                return saving
            return (_operators().block(*arguments),)

        def gradients(grad: Tensor, _: Sequence[bool], x: Tensor, *stored: Any) -> Gradients:
            w = BlockWeights(*stored[: len(BlockWeights._fields)])
            saved = stored[-1] if saves else None
            packed, *others = _arguments(w, settings, geometry, dtype, cache)
            units = 1, x.shape[-1] // len(w.position_bias_hNN), 1, 1
            transposed = [
                _operators().pack_linear(weight, dtype, unit, transposed=True)
                for weight, unit in zip(_linear_weights(w), units)
            ]
            of_x, *of_weights = _operators().block_backward(x, grad, packed, transposed, *others, saved)
            by_name = dict(zip(GRADIENTS, of_weights))
            return of_x, *(by_name.get(name) for name in w._fields)

        def with_second_derivative(x: Tensor, *weights: Any) -> Tensor:
            windows = self.windows(geometry, settings.kind)
            y = BLOCKS[settings.kind](windows.read(x), windows, BlockWeights(*weights), settings)
            return windows.write(y, x, None)

        return operate(compute, gradients, with_second_derivative, x_BHWC, *w)

    def merge(
        self, x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        dtype = _dtype(plan)

        def compute(x: Tensor, *weights: Any) -> Outputs:
            (panels,) = pack(cache, weights[:1], dtype, (1,), neighbours_first)
            _, *norm = neighbours_in_order(MergingWeights(*weights), post_norm)
            return (_operators().merge(x, panels, *norm, eps, post_norm),)

        def gradients(grad: Tensor, needed: Sequence[bool], x: Tensor, *weights: Any) -> Gradients:
            (panels,) = pack(cache, weights[:1], dtype, (1,), neighbours_first)
            weight, *norm = neighbours_in_order(MergingWeights(*weights), post_norm)
            normed = not post_norm and any(needed[2:])  # a norm before the projection gets its gradient through it
            transposed = _transposed(weight, dtype) if needed[0] or normed else None
            of_x, of_weight, _, *of_norm = _operators().merge_backward(
                x, grad, panels, transposed, *norm, eps, post_norm
            )
            if not post_norm:
                of_norm = [neighbours_last(g) for g in of_norm]
            return of_x, neighbours_last(of_weight), *of_norm

        def by_torch(x: Tensor, *weights: Any) -> Tensor:
            return patches.merge(x, neighbours_in_order(MergingWeights(*weights), post_norm), eps, post_norm)

        return operate(compute, gradients, by_torch, x_BHWC.float().contiguous(), *w)

    def output_norm(
        self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, plan: Plan
    ) -> Tensor:
        """See `Backend`."""

        def compute(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Outputs:
            return (_operators().output_norm(x, weight, bias, eps),)

        def gradients(
            grad: Tensor, _: Sequence[bool], x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]
        ) -> Gradients:
            found: Gradients = _operators().output_norm_backward(x, grad, weight, bias, eps)
            return found

        def by_torch(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps).permute(0, 3, 1, 2)

        return operate(compute, gradients, by_torch, x_BHWC.float().contiguous(), weight, bias)

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        """See `Backend`. The operators have no windows of their own: a changed block is computed by torch."""
        return Eager().windows(geometry, kind)

    def saves(self, dtype: torch.dtype, channels: int) -> bool:
        """Whether a forward that need not save memory should save a block's intermediate values for backward."""
        return dtype == torch.float32 and channels >= SAVED_CHANNELS


def _operators() -> Any:
    """The operators, or the functions that they are registered from: they can be called in less time."""
    return torch.ops.swin_backbone if operators_are_watched() else operators


def _dtype(plan: Plan) -> torch.dtype:
    return plan.dtype or torch.float32


def pack(
    cache: WeightCache,
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    units: Units,
    arrange: Callable[[Tensor], Tensor] = torch.Tensor.detach,
) -> list[Tensor]:
    """The weights (out, in...) of a layer in the order in which the operators read them, kept until they change.

    Args:
        arrange: first puts the weights' inputs in the operator's order.
    """

    def make() -> list[Tensor]:
        return [_operators().pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]

    return made_from(weights, (dtype, *units), make, cache)


def made_from(
    weights: Sequence[Tensor], settings: tuple[Any, ...], make: Callable[[], list[Tensor]], cache: WeightCache
) -> list[Tensor]:
    """What `make` returns for these settings and the numbers that the weights have now, whoever wrote these.

    Fused optimizers, `.data` and numpy leave no trace in a tensor. So each call reads all weights for a checksum, in a
    seventh of the time of packing.
    """

    def make_plain() -> list[Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            return make()

    if fake_mode() is not None:  # whose tensors have no numbers
        return make_plain()
    key = *settings, *((w.shape, w.dtype) for w in weights), _operators().checksum(weights)
    made = cache.made  # read once: another thread may replace it
    if made is not None and made[0] == key:
        return made[1]
    cache.made = None  # first free the old copy, so that there are never two
    tensors = make_plain()
    if _operators().checksum(weights) == key[-1]:  # else a thread wrote them meanwhile
        cache.made = key, tensors
    return tensors


def _transposed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    panels: Tensor = _operators().pack_linear(weight, dtype, 1, transposed=True)
    return panels


def _arguments(
    w: BlockWeights, settings: BlockSettings, geometry: Geometry, dtype: torch.dtype, cache: WeightCache
) -> tuple[Any, ...]:
    """The operators' arguments after the maps."""
    heads, C = len(w.position_bias_hNN), len(w.qkv_weight) // 3
    vectors = [getattr(w, name) for name in VECTORS]
    return (
        *(pack(cache, _linear_weights(w), dtype, (C // heads, 1, 1, 1)), vectors, w.position_bias_hNN),
        *(w.cosine_scale_h, w.drop_path_2B, heads, list(geometry.window_size), list(geometry.shift)),
        *(geometry.mask_padding, settings.scale, list(settings.eps)),
    )


def _linear_weights(w: BlockWeights) -> tuple[Tensor, ...]:
    return w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight
