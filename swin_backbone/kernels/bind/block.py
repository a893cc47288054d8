"""Swin blocks, V1 or V2, by the compiled library: one block, or all blocks of a stage.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.layers.swin_block import DropPath, ShiftedWindowAttention, SwinBlock, WindowAttention
from ...models.layers.swin_v2_block import SwinV2Block, WindowAttentionV2, cosine_scale
from ...modes import is_recorded, without_autocast
from ...positions import Size, log_spaced_coordinates, relative_position_bias
from ...replace import Modules, forget_readings, is_changed, keep_methods, read_modules, read_once
from ..native.availability import find_obstacle, products_of
from ..native.layers import BlockComputation, BlockSettings, BlockWeights
from ..native.memory import Unfit, address, cache_of, describe_unfit, free_if_elsewhere
from ..native.plans import Call, Layer, OperatorCall, plan_module, plan_swin_layer
from ..native.storage import TINY, Stages, is_stored
from .single_layer import forward_by_torch

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
    **{'ffn': nn.Sequential, 'ffn.layers': nn.Sequential, 'ffn.layers.0': nn.Sequential, 'ffn.layers.0.1': nn.GELU},
    **{'ffn.layers.0.2': nn.Dropout, 'ffn.layers.2': nn.Dropout, 'drop_path': DropPath},
}
KINDS_V2 = {
    **KINDS_V1,
    **{'attn.w_msa': WindowAttentionV2, f'{ATTENTION}cpb_mlp': nn.Sequential, f'{ATTENTION}cpb_mlp.1': nn.ReLU},
    **dict.fromkeys([f'{ATTENTION}cpb_mlp.0', f'{ATTENTION}cpb_mlp.2'], nn.Linear),
}
KINDS_V2_NORM3 = {**KINDS_V2, 'norm3': nn.LayerNorm}


BLOCKS = SwinBlock, SwinV2Block
keep_methods([*BLOCKS, nn.Identity, *KINDS_V1.values(), *KINDS_V2.values()])


class BlockPlan(NamedTuple):
    """A block that is ready to run; see `replace.Plan`."""

    block: Any
    call: Call

    def __call__(self, x_BHWC: Tensor, out: Optional[Tensor] = None) -> Tensor:
        """Run the block, see `SwinBlock.forward`.

        Args:
            out: memory for the output, without gradients. The memory of the input is allowed.
        """
        block, call = self
        drop_path = block.drop_path
        if drop_path.training and drop_path.drop_prob > 0:
            is_repeated = torch.is_grad_enabled() and not is_recorded()
            random_state = torch.get_rng_state() if is_repeated else None
            call = with_drop_path(call, _draw_drop_path(drop_path.drop_prob, len(x_BHWC)), random_state)
        if out is not None:
            call = call._replace(computation=call.computation._replace(out=out))
        return call(x_BHWC)


def with_drop_path(call: Any, factors_2B: Optional[Tensor], random_state: Optional[Tensor]) -> Any:
    """Return the call of a block that multiplies the branches by factors.

    Args:
        random_state: of torch's generator before the factors were drawn; None without gradients.
    """
    if factors_2B is None:
        return call
    if isinstance(call, OperatorCall):
        return call._replace(computation=call.computation._replace(drop_path_2B=factors_2B))
    call.prepared.drop_path = address('drop_path', factors_2B, tuple(factors_2B.shape))
    by_torch = partial(call.by_torch, random_state=random_state)
    return call._replace(computation=call.computation._replace(drop_path_2B=factors_2B), by_torch=by_torch)


def plan_block(block: Any, x_BHWC: Tensor) -> Union[BlockPlan, str]:
    """See `replace.Replacement`."""
    call = plan_module(read_block, block, x_BHWC)
    return call if isinstance(call, str) else BlockPlan(block, call)


def read_block(block: Any, x_BHWC: Tensor, stages: Stages = TINY) -> Union[Layer, str]:
    """Return the `Layer` of a block, or in a sentence why the library does not compute the block.

    Args:
        stages: channels and blocks of each stage of the backbone; the sizes decide what a training step stores.
    """
    is_v2 = isinstance(block, SwinV2Block)
    kinds = KINDS_V1 if not is_v2 else KINDS_V2 if block.norm3 is None else KINDS_V2_NORM3
    modules = read_modules(block, kinds)
    if isinstance(modules, str):
        return modules
    reason = _find_setting_obstacle(block, modules, x_BHWC)
    if reason is not None:
        return reason
    tensors: dict[str, Any] = {}
    for name, owner, leaf in NAMES_V2 if is_v2 else NAMES_V1:
        module = modules.get(owner)
        of_module = {} if module is None else module._parameters  # a lookup here takes a fifth of the time of getattr
        tensors[name] = of_module[leaf] if leaf in of_module else getattr(module, leaf, None)
    required = (*NAMES[:4], LOGIT_SCALE, *CPB) if is_v2 else (*NAMES[:4], TABLE)
    if any(tensors[name] is None or not tensors[name].dim() for name in required):
        return f'{type(block).__name__} lacks a weight that it was built with.'
    attention, windows, C = modules['attn.w_msa'], block.windows(x_BHWC), x_BHWC.shape[3]
    if windows.before != (0, 0) or windows[:2] != x_BHWC.shape[1:3]:
        return 'The compiled library pads at right and bottom alone.'
    if is_v2:
        h, hidden, table_window = len(tensors[LOGIT_SCALE]), len(tensors[CPB[0]]), attention.pretrained_window
        shapes = [(h, 1, 1), (hidden, 2), (hidden,), (h, hidden), (C,), (C,)]
    else:
        h, table_window = tensors[TABLE].shape[-1], attention.window_size
        shapes = [((2 * table_window[0] - 1) * (2 * table_window[1] - 1), h)]
    dtype, has_gradients = products_of(block, x_BHWC, *tensors.values())
    eps = tuple(modules[name].eps for name in NORMS if name in kinds)
    stores = has_gradients and not getattr(block, 'with_cp', False) and is_stored(dtype, C, stages)
    window_pair = windows.window_size, table_window or windows.window_size
    if not is_v2 and any(side > of_table for side, of_table in zip(*window_pair)):
        return f'The table of position biases is for windows of {table_window}, not {windows.window_size}.'
    settings = BlockSettings(h, len(tensors[f'{LINEARS[2]}.weight']), attention.scale, eps, window_pair[1])
    computation = BlockComputation(settings, windows, dtype, cache_of(block), stores)
    by_torch, derive = partial(forward_by_torch, [*tensors]), partial(_derive, [*tensors], shapes, window_pair)
    return Layer(computation, by_torch, [*tensors.values()], derive)


def _find_setting_obstacle(block: Any, modules: Modules, x_BHWC: Tensor) -> Optional[str]:
    """Return a sentence on a setting of a block that the library lacks, or None."""
    attention, drop_path = modules['attn.w_msa'], modules['drop_path']
    dropouts = attention.proj_drop, modules['ffn.layers.0.2'], modules['ffn.layers.2']
    if attention.backend not in ('auto', 'native'):
        return f'The backend of the attention is {attention.backend!r}.'
    if modules['ffn.layers.0.1'].approximate != 'none':
        return 'The compiled library has exact GELU alone.'
    if any(dropout.p and dropout.training for dropout in dropouts) or (attention.attn_drop_rate and attention.training):
        return 'The compiled library has no dropout, and a dropout rate is above 0.'
    if drop_path.training and not 0 <= drop_path.drop_prob < 1:
        return f'The compiled library takes drop path rates from 0 to below 1, not {drop_path.drop_prob}.'
    if 'attn.w_msa.cpb_mlp' in modules and attention.qkv.bias is not None:
        return 'The compiled library adds q_bias and v_bias to the projection, and qkv has a bias of its own.'
    if isinstance(attention.scale, Tensor):
        return 'The compiled library takes a number as the scale of attention, not a tensor.'
    channels = tuple(x_BHWC.shape[3:])
    norms = [modules[name] for name in NORMS if name in modules]
    if any(norm.normalized_shape != channels for norm in norms):
        return f'The compiled library normalises each token of a map, and the map is {list(x_BHWC.shape)}.'
    return None


def plan_stage(stage: Any, x_BHWC: Tensor, merges: bool = True) -> Union['StagePlan', None]:
    """See `replace.Replacement`. Without a plan, `SwinStage` calls its blocks."""
    layers = find_obstacle(x_BHWC, stage) or read_once(read_stage, stage, x_BHWC)
    if isinstance(layers, str):
        free_if_elsewhere(stage, x_BHWC)
        return None
    try:
        calls = [plan_swin_layer(layer, block, x_BHWC.shape) for block, layer in zip(stage.blocks, layers)]
    except Unfit:
        forget_readings(stage)  # sizes may have changed
        return None
    return StagePlan([*map(BlockPlan, stage.blocks, calls)], stage.downsample)


def read_stage(stage: Any, x_BHWC: Tensor) -> Union[list[Layer], str]:
    """Return the `Layer` of each block of a stage, or in a sentence why the library does not compute one."""
    layers = []
    for block in stage.blocks:
        if type(block) not in BLOCKS or is_changed(block) or block.backend not in ('auto', 'native'):
            return f'A call of {type(block).__name__} runs other code, or has another backend.'
        layer = read_block(block, x_BHWC, stage.backbone_stages)
        if isinstance(layer, str):
            return layer
        layers.append(layer)
    return layers


class StagePlan(NamedTuple):
    """The blocks of a stage that are ready to run; see `replace.Plan`."""

    blocks: list[BlockPlan]
    downsample: Optional[nn.Module]

    def __call__(self, x_BHWC: Tensor, merges: bool = True) -> tuple[Tensor, Tensor]:
        """Run the blocks and the patch merging of a stage, see `SwinStage.forward`.

        Without gradients, each block writes over the output of the block before. The input of the stage does not
        change.
        """
        out = None
        for block in self.blocks:
            x_BHWC = block(x_BHWC, out)
            out = None if torch.is_grad_enabled() or is_recorded() else x_BHWC
        return x_BHWC, self.downsample(x_BHWC) if merges and self.downsample is not None else x_BHWC


def _derive(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], window_pair: tuple[Size, Size], *tensors: Any
) -> BlockWeights:
    """Return the library's weights from the tensors of a block; or raise `Unfit`, because `.data` may be anything.

    Args:
        shapes: of the tensors that are not weights of the library themselves.
        window_pair: the window in use, and the window of the table (V1) or of pre-training (V2).
    """
    for name, tensor, shape in zip(names[len(NAMES) :], tensors[len(NAMES) :], shapes):
        if tensor is not None and (tensor.shape != shape or tensor.dtype is not torch.float32):
            raise Unfit(describe_unfit(name, tensor, shape, torch.float32))
    w = dict(zip(names, tensors))
    if LOGIT_SCALE not in w:
        derived: dict[str, Any] = dict(position_bias_hNN=relative_position_bias(w[TABLE], *window_pair))
    else:
        coordinates_R2 = log_spaced_coordinates(*window_pair, torch.device('cpu'), torch.float32)
        bias_hNN = relative_position_bias(continuous_table(w, coordinates_R2), window_pair[0])
        scale_h = cosine_scale(w[LOGIT_SCALE])
        derived = dict(position_bias_hNN=bias_hNN, cosine_scale_h=scale_h, qkv_bias=qkv_bias(w))
    return BlockWeights(**{**dict(zip(BlockWeights._fields, tensors[: len(NAMES)])), **derived})


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
