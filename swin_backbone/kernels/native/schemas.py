"""The arguments of the library's operators of torch, and the computation behind each operator.

Layout: see `layers.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ...models.windows import Windows
from .layers import (
    BlockComputation,
    BlockSettings,
    BlockWeights,
    GraphComputation,
    OutputNormComputation,
    ProjectionComputation,
)
from .memory import Cache

Weights = Sequence[Optional[Tensor]]
FindCache = Callable[[Tensor], Cache]


class Schema(NamedTuple):
    """The arguments of an operator of torch after the input.

    Attributes:
        weights: names, in the order of the gradients. Further weights have no gradient.
        settings: in torch's language of schemas.
        make: takes the shape of the input, a function from a weight to a cache of packed weights, and the arguments.
            Returns the computation, and the weights that have gradients.
    """

    weights: Sequence[str]
    settings: str
    make: Callable[..., tuple[GraphComputation, Weights]]

    def make_computation(
        self, x: Tensor, arguments: Sequence[Any], find_cache: FindCache = lambda _: {}
    ) -> tuple[GraphComputation, Weights]:
        """Return the computation for the arguments after the input, and the weights that have gradients."""
        count = len(self.weights)
        return self.make(x.shape, find_cache, arguments[:count], *arguments[count:])


def _make_block(
    shape: Sequence[int],
    find_cache: FindCache,
    weights: Weights,
    window: Sequence[int],
    shift: Sequence[int],
    mask_padding: bool,
    pads_first: bool,
    scale: float,
    eps: Sequence[float],
    dtype: torch.dtype,
    stores: bool,
) -> tuple[GraphComputation, Weights]:
    tensors: Any = weights[:-1]
    w = BlockWeights(*tensors)
    window_size, heads, hidden = (window[0], window[1]), w.position_bias_hNN.shape[0], w.fc1_weight.shape[0]
    windows = Windows(shape[1], shape[2], window_size, (shift[0], shift[1]), mask_padding)
    settings = BlockSettings(heads, hidden, scale, tuple(eps), window_size, pads_first)
    computation = BlockComputation(settings, windows, dtype, find_cache(w.qkv_weight), stores, weights[-1])
    return computation._replace(room=computation.most_stored(shape, *w)), w


def _make_projection(
    _: Sequence[int],
    find_cache: FindCache,
    weights: Weights,
    merges: bool,
    eps: Optional[float],
    post_norm: bool,
    dtype: torch.dtype,
    has_gradients: bool,
) -> tuple[GraphComputation, Weights]:
    tensors: Any = weights
    return ProjectionComputation(merges, eps, post_norm, dtype, find_cache(tensors[0]), has_gradients), weights


SCHEMAS = {
    'block': Schema(
        [*BlockWeights._fields, 'drop_path_2B'],
        'int[] window, int[] shift, bool mask_padding, bool pads_first, float scale, float[] eps, ScalarType dtype, '
        'bool stores',
        _make_block,
    ),
    'project': Schema(
        ['weight', 'bias', 'norm_weight', 'norm_bias'],
        'bool merges, float? eps, bool post_norm, ScalarType dtype, bool has_gradients',
        _make_projection,
    ),
    'normalise_output': Schema(
        ['weight', 'bias'], 'float eps', lambda _, find_cache, weights, eps: (OutputNormComputation(eps), weights)
    ),
}
