"""Swin blocks, of this package and of others: the tensors by our names, the library's weights, the recipe.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.layers.swin_v2_block import compute_cosine_scale
from ...models.windows import Windows, make_position_bias
from ...modes import without_autocast
from ...positions import log_spaced_coordinates
from ...sizes import Size
from ..native.availability import find_dtype_and_gradients
from ..native.computations import BlockComputation, BlockSettings, BlockWeights
from ..native.interface import MakeWeights
from ..native.memory import find_cache
from ..native.plans import LayerRecipe
from ..native.saved_blocks import Stages, saves_activations

ATTENTION_PREFIX = 'attn.w_msa.'
# Names of the first tensors of `BlockWeights`: of the linear layers, then of the norms.
LINEARS = 'attn.w_msa.qkv', 'attn.w_msa.proj', 'ffn.layers.0.0', 'ffn.layers.1'
NORMS = 'norm1', 'norm2', 'norm3'
LINEAR_WEIGHTS = [f'{name}.weight' for name in LINEARS]
WEIGHTS = [
    *LINEAR_WEIGHTS,
    *(f'{name}.bias' for name in LINEARS),
    *(f'{name}.{attribute}' for name in NORMS for attribute in ('weight', 'bias')),
]
FIELDS = dict(zip(BlockWeights._fields, WEIGHTS))
BIAS_TABLE, LOGIT_SCALE = f'{ATTENTION_PREFIX}relative_position_bias_table', f'{ATTENTION_PREFIX}logit_scale'
CPB = [f'{ATTENTION_PREFIX}cpb_mlp.{name}' for name in ('0.weight', '0.bias', '2.weight')]
COORDINATES = f'{ATTENTION_PREFIX}relative_coords_table'  # of V2 in other packages
QKV_BIASES = [f'{ATTENTION_PREFIX}{name}' for name in ('q_bias', 'v_bias')]


def make_block_recipe(
    block: Any,
    x_BHWC: Tensor,
    *,
    tensors: Mapping[str, Any],
    windows: Windows,
    bias_window: Size,
    scale: float,
    eps: tuple[float, ...],
    stages: Stages,
    by_torch: Callable[..., Tensor],
    make_weights: MakeWeights,
    draw_drop_path: Optional[Callable[[Tensor], Optional[Tensor]]],
    pads_first: bool = True,
) -> LayerRecipe:
    """Return the recipe of a block. For the arguments see `BlockSettings`, `BlockComputation` and `LayerRecipe`.

    Args:
        tensors: the parameters of the recipe, by our names.
        stages: of the backbone; the sizes decide whether a training step saves activations.
    """
    heads = len(tensors[LOGIT_SCALE]) if LOGIT_SCALE in tensors else tensors[BIAS_TABLE].shape[-1]
    hidden = len(tensors[f'{LINEARS[2]}.weight'])
    settings = BlockSettings(heads, hidden, scale, eps, bias_window, pads_first)
    dtype, has_gradients = find_dtype_and_gradients(block, x_BHWC, *tensors.values())
    is_checkpointed = getattr(block, 'with_cp', False)
    saves = has_gradients and not is_checkpointed and saves_activations(dtype, x_BHWC.shape[3], stages)
    computation = BlockComputation(settings, windows, dtype, find_cache(block), saves)
    return LayerRecipe(computation, by_torch, [*tensors.values()], make_weights, draw_drop_path)


def make_block_weights(w: Mapping[str, Any], window_size: Size, bias_window: Size) -> BlockWeights:
    """Return the library's weights from the tensors of a block, in torch operations.

    Args:
        w: the tensors by name.
        bias_window: the window of the table (V1) or of pre-training (V2).
    """
    fields: dict[str, Any] = {field: w.get(name) for field, name in FIELDS.items()}
    if LOGIT_SCALE not in w:
        fields['position_bias_hNN'] = make_position_bias(w[BIAS_TABLE], window_size, bias_window)
        return BlockWeights(**fields)
    coordinates = w.get(COORDINATES)
    if coordinates is None:
        coordinates = log_spaced_coordinates(window_size, bias_window, torch.device('cpu'), torch.float32)
    fields['position_bias_hNN'] = make_position_bias(_make_continuous_table(w, coordinates), window_size)
    fields['qkv_bias'] = _join_qkv_bias(w)
    fields['cosine_scale_h'] = compute_cosine_scale(w[LOGIT_SCALE])
    return BlockWeights(**fields)


def _make_continuous_table(w: Mapping[str, Any], coordinates: Tensor) -> Tensor:
    """Return the table of position biases of Swin V2, (R, h), from `cpb_mlp` (Liu et al. 2022, equation 3).

    Args:
        coordinates: (..., 2), of R offsets.
    """
    first, bias, last = (w[name] for name in CPB)
    with without_autocast('cpu'):
        hidden = F.relu(F.linear(coordinates, first, bias))
        return 16 * F.linear(hidden, last).sigmoid().flatten(0, -2)


def _join_qkv_bias(w: Mapping[str, Any]) -> Optional[Tensor]:
    """Return the bias (3C,) of query, key and value of Swin V2. The bias of the key is 0."""
    bias_3C, (q_bias, v_bias) = w.get(f'{ATTENTION_PREFIX}qkv.bias'), (w.get(name) for name in QKV_BIASES)
    if bias_3C is not None:
        factors = bias_3C.new_tensor([[1.0], [0.0], [1.0]])
        return (bias_3C.unflatten(0, (3, -1)) * factors).flatten()
    return None if q_bias is None or v_bias is None else torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])
