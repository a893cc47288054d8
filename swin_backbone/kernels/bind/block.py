"""Swin blocks, V1 or V2, by the compiled library: one block, or all blocks of a stage.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...compat import is_hooked
from ...models.layers.mlp import MLP, DropPath
from ...models.layers.swin_block import ShiftedWindowAttention, SwinBlock, WindowAttention
from ...models.layers.swin_v2_block import SwinV2Block, WindowAttentionV2, cosine_scale
from ...modes import without_autocast
from ...positions import Size, log_spaced_coordinates, relative_position_bias
from ...replace import refuse
from ..native.availability import TINY, Stages, is_stored
from ..native.layers import BlockOperator, BlockSettings, BlockWeights, can_compute_block, run_operator
from ..native.memory import Cache, cache_of, cached_while_unchanged, can_read
from .structure import can_read_map, forward_by_torch, is_as_built, modules_inside, products_dtype, records_gradients

CACHED_BIAS = 2**18  # numbers of the largest relative position bias in the cache, 1 MiB
ATTENTION = 'attn.w_msa.'
# Names of the first tensors of `BlockWeights`: of the linear layers, then of the norms.
LINEARS, NORMS = (f'{ATTENTION}qkv', f'{ATTENTION}proj', 'ffn.layers.0.0', 'ffn.layers.1'), ('norm1', 'norm2', 'norm3')
NAMES = [
    *(f'{name}.{leaf}' for leaf in ('weight', 'bias') for name in LINEARS),
    *(f'{name}.{leaf}' for name in NORMS for leaf in ('weight', 'bias')),
]
FIELDS = dict(zip(BlockWeights._fields, NAMES))
TABLE, LOGIT_SCALE = f'{ATTENTION}relative_position_bias_table', f'{ATTENTION}logit_scale'
CPB = [f'{ATTENTION}cpb_mlp.{name}' for name in ('0.weight', '0.bias', '2.weight')]
QKV_BIASES = [f'{ATTENTION}{name}' for name in ('q_bias', 'v_bias')]
# A block's tensors: the name, the name of the module that owns the tensor, the attribute of the module.
NAMES_V1 = [(name, *name.rsplit('.', 1)) for name in (*NAMES, TABLE)]
NAMES_V2 = [(name, *name.rsplit('.', 1)) for name in (*NAMES, LOGIT_SCALE, *CPB, *QKV_BIASES)]
# Types of the modules inside a block, by name.
KINDS_V1 = {
    **dict.fromkeys(NORMS[:2], nn.LayerNorm),
    **{'attn': ShiftedWindowAttention, 'attn.w_msa': WindowAttention, f'{ATTENTION}proj_drop': nn.Dropout},
    **dict.fromkeys(LINEARS, nn.Linear),
    **{'ffn': MLP, 'ffn.layers': nn.Sequential, 'ffn.layers.0': nn.Sequential, 'ffn.layers.0.1': nn.GELU},
    **{'ffn.layers.0.2': nn.Dropout, 'ffn.layers.2': nn.Dropout, 'drop_path': DropPath},
}
KINDS_V2 = {
    **KINDS_V1,
    **{'attn.w_msa': WindowAttentionV2, f'{ATTENTION}cpb_mlp': nn.Sequential, f'{ATTENTION}cpb_mlp.1': nn.ReLU},
    **dict.fromkeys([f'{ATTENTION}cpb_mlp.0', f'{ATTENTION}cpb_mlp.2'], nn.Linear),
}
KINDS_V2_NORM3 = {**KINDS_V2, 'norm3': nn.LayerNorm}


class Parts(NamedTuple):
    """What the library needs of a block."""

    block: Any
    tensors: dict[str, Optional[Tensor]]  # in the order of `NAMES_V1` or `NAMES_V2`; None: the block has no such tensor
    heads: int  # by the tensors, which pruning may have changed
    settings: BlockSettings
    # of the position bias table (V1) or of pre-training (V2); None: the window in use
    table_window: Optional[Size]


def can_run(block: Any, x_BHWC: Optional[Tensor], raise_error: bool = False) -> Any:
    """See `replace.Replacement`; without a map: whether the library computes the block as it is."""
    is_v2, modules = isinstance(block, SwinV2Block), modules_inside(block)
    kinds = KINDS_V1 if not is_v2 else KINDS_V2 if block.norm3 is None else KINDS_V2_NORM3
    if not (can_read_map(block, x_BHWC, raise_error) and is_as_built(block, modules, kinds, raise_error)):
        return False
    attention, drop_path = modules['attn.w_msa'], modules['drop_path']
    dropouts = attention.proj_drop, modules['ffn.layers.0.2'], modules['ffn.layers.2']
    reason = None
    if modules['ffn.layers.0.1'].approximate != 'none':
        reason = 'The compiled library has exact GELU alone.'
    elif any(one.p and one.training for one in dropouts) or (attention.attn_drop_rate and attention.training):
        reason = 'The compiled library has no dropout, and a dropout rate is above 0.'
    elif drop_path.drop_prob >= 1 and drop_path.training:
        reason = 'The compiled library drops no branch for certain, and a drop path rate is 1.'
    elif is_v2 and attention.qkv.bias is not None:
        reason = 'The compiled library adds q_bias and v_bias to the projection, and qkv has a bias of its own.'
    if reason is not None:
        return refuse('native', reason, raise_error)
    names = NAMES_V2 if is_v2 else NAMES_V1
    tensors = {}
    for name, owner, leaf in names:
        module = modules.get(owner)
        of_module = {} if module is None else module._parameters  # a lookup here takes a fifth of the time of getattr
        tensors[name] = of_module[leaf] if leaf in of_module else getattr(module, leaf, None)
    if not can_read(tensors.values(), raise_error):
        return False
    w: Mapping[str, Any] = tensors
    if is_v2:
        h, C, hidden, table_window = len(w[LOGIT_SCALE]), len(w[NAMES[1]]), len(w[CPB[0]]), attention.pretrained_window
        more_shapes: Sequence[tuple[int, ...]] = (h, 1, 1), (hidden, 2), (hidden,), (h, hidden), (C,), (C,)
    else:
        h, table_window = w[TABLE].shape[-1], attention.window_size
        more_shapes = (((2 * table_window[0] - 1) * (2 * table_window[1] - 1), h),)
    if not can_compute_block(tensors, h, block.window_size, more_shapes, raise_error):
        return False
    eps = (modules[name].eps for name in NORMS if name in kinds)
    return Parts(block, tensors, h, BlockSettings(attention.scale, tuple(eps)), table_window)


def run(
    parts: Parts, x_BHWC: Tensor, stages: Stages = TINY, with_cp: bool = False, out: Optional[Tensor] = None
) -> Tensor:
    """Run a block, see `SwinBlock.forward`.

    Args:
        stages: channels and blocks of each stage of the backbone; the sizes decide what a training step stores.
        with_cp: whether a training step stores the block's input alone.
        out: memory for the output, without gradients. The memory of the input is allowed.
    """
    (block, tensors, heads, settings, table_window), has_gradients = parts, torch.is_grad_enabled()
    windows, drop_path, cache = block.windows(x_BHWC), block.drop_path, cache_of(block)
    dtype = products_dtype(block, x_BHWC, *tensors.values())
    random_state = drop_path_2B = None
    if drop_path.training and drop_path.drop_prob > 0:
        random_state = torch.get_rng_state() if has_gradients else None
        drop_path_2B = _draw_drop_path(drop_path.drop_prob, len(x_BHWC))
    stores = records_gradients(x_BHWC, *tensors.values()) and not with_cp and is_stored(dtype, x_BHWC.shape[3], stages)
    window_pair = windows.window_size, table_window or windows.window_size
    caches_bias = not has_gradients and heads * math.prod(windows.window_size) ** 2 <= CACHED_BIAS
    return run_operator(
        BlockOperator(settings, windows, dtype, cache, drop_path_2B, stores, out),
        partial(forward_by_torch, block, [*tensors], random_state),
        x_BHWC.float().contiguous(),
        *tensors.values(),
        derive=partial(_derive, [*tensors], window_pair, cache if caches_bias else None),
    )


def can_run_stage(stage: Any, x_BHWC: Tensor, raise_error: bool = False) -> Any:
    """See `replace.Replacement`. Never raises: on False `SwinStage` calls the blocks, and each raises for itself."""
    if not can_read_map(stage, x_BHWC) or type(stage.blocks) is not nn.ModuleList:
        return False
    blocks = []
    for block in stage.blocks:
        is_ours = type(block).forward in (SwinBlock.forward, SwinV2Block.forward) and not is_hooked(block)
        parts = is_ours and can_run(block, None)
        if not parts:
            return False
        blocks.append(parts)
    return stage, blocks


def run_stage(parts: tuple[Any, list[Parts]], x_BHWC: Tensor) -> Tensor:
    """Run the blocks of a stage, see `SwinStage.forward`.

    Without gradients, each block writes over the output of the block before. The input of the stage does not change.
    """
    (stage, blocks), out = parts, None
    for block in blocks:
        x_BHWC = run(block, x_BHWC, stage.backbone_stages, block.block.with_cp, out)
        out = None if torch.is_grad_enabled() else x_BHWC
    return x_BHWC


def weights_of(parts: Parts, window_size: Size) -> BlockWeights:
    """Return the library's weights of a block, for windows of a size."""
    return _derive([*parts.tensors], (window_size, parts.table_window or window_size), None, *parts.tensors.values())


def _derive(
    names: Sequence[str], window_pair: tuple[Size, Size], cache: Optional[Cache], *tensors: Any
) -> BlockWeights:
    """Return the library's weights from the tensors of a block.

    Args:
        window_pair: the window in use, and the window of the table (V1) or of pre-training (V2).
        cache: of the computed tensors; None: compute them anew, with gradients.
    """
    w = dict(zip(names, tensors))
    own = [tensor for tensor in tensors[len(NAMES) :] if tensor is not None]
    if cache is None:
        derived = _compute(w, window_pair)
    else:
        derived = cached_while_unchanged(own, window_pair, partial(_compute, w, window_pair), cache, 'derived')
    return BlockWeights(**{**dict(zip(BlockWeights._fields, tensors[: len(NAMES)])), **derived})


def _compute(w: Mapping[str, Any], window_pair: tuple[Size, Size]) -> dict[str, Any]:
    """Return the fields of `BlockWeights` computed from parameters; for V2 these include scale and `qkv_bias`."""
    if LOGIT_SCALE not in w:
        return dict(position_bias_hNN=relative_position_bias(w[TABLE], *window_pair))
    coordinates_R2 = log_spaced_coordinates(*window_pair, torch.device('cpu'), torch.float32)
    bias_hNN = relative_position_bias(continuous_table(w, coordinates_R2), window_pair[0])
    return dict(position_bias_hNN=bias_hNN, cosine_scale_h=cosine_scale(w[LOGIT_SCALE]), qkv_bias=qkv_bias(w))


def continuous_table(w: Mapping[str, Any], coordinates_R2: Tensor) -> Tensor:
    """Return the table of position biases of Swin V2, (R, h), from `cpb_mlp` (Liu et al. 2022, equation 3)."""
    first, bias, last = (w[name] for name in CPB)
    with without_autocast('cpu'):
        hidden = F.relu(F.linear(coordinates_R2, first, bias))
        return 16 * F.linear(hidden, last).sigmoid()


def qkv_bias(w: Mapping[str, Any]) -> Optional[Tensor]:
    """Return the bias (3C,) of query, key and value of Swin V2. The bias of the key is 0."""
    q_bias, v_bias = (w.get(name) for name in QKV_BIASES)
    return None if q_bias is None or v_bias is None else torch.cat([q_bias, torch.zeros_like(q_bias), v_bias])


def _draw_drop_path(rate: float, batch: int) -> Tensor:
    """Return the factors of the two branches for the images, 0 or 1 / (1 - rate): (2, B).

    The numbers are equal to those of `DropPath`: first for attention, then for the MLP.
    """
    return torch.rand(2, batch, dtype=torch.float32, device='cpu').add_(1 - rate).floor_().div_(1 - rate)
