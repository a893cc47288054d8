"""The Swin layers of this package by the compiled library: blocks, stages, patches, patch merging, output norms.

`read_...` returns what the library computes of a module, a `NativeLayer`, and `plan_...` the plan of a call.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from ...models.layers import PatchEmbed, PatchMerging
from ...models.layers.swin_block import DropPath, ShiftedWindowAttention, SwinBlock, WindowAttention
from ...models.layers.swin_v2_block import SwinV2Block, WindowAttentionV2
from ...modes import needs_torch_op
from ...replace import Reason
from ...sizes import Size
from ..changes import Modules, is_changed, read_modules, record_methods
from ..native.availability import dtype_and_gradients
from ..native.layers import (
    BlockComputation,
    BlockSettings,
    BlockWeights,
    OutputNormComputation,
    ProjectionComputation,
)
from ..native.memory import Unsupported, cache_of, describe_unsupported
from ..native.plans import NativeLayer, NativePlan, plan_layer, plan_module
from ..native.saved_blocks import SWIN_T_STAGES, Stages, saves_activations
from .block_weights import (
    ATTENTION_PREFIX,
    BIAS_TABLE,
    CPB,
    LINEARS,
    LOGIT_SCALE,
    NAMES,
    NORMS,
    QKV_BIASES,
    make_block_weights,
)
from .single_layer import forward_by_torch

# A block's tensors: the name, the name of the module that owns the tensor, the attribute of the module.
NAMES_V1 = [(name, *name.rsplit('.', 1)) for name in (*NAMES, BIAS_TABLE)]
NAMES_V2 = [(name, *name.rsplit('.', 1)) for name in (*NAMES, LOGIT_SCALE, *CPB, *QKV_BIASES)]
# Types of the modules inside a block, by name.
TYPES_V1 = {
    **dict.fromkeys(NORMS[:2], nn.LayerNorm),
    **{'attn': ShiftedWindowAttention, 'attn.w_msa': WindowAttention, f'{ATTENTION_PREFIX}proj_drop': nn.Dropout},
    **dict.fromkeys(LINEARS, nn.Linear),
    **{'ffn': nn.Sequential, 'ffn.layers': nn.Sequential, 'ffn.layers.0': nn.Sequential, 'ffn.layers.0.1': nn.GELU},
    **{'ffn.layers.0.2': nn.Dropout, 'ffn.layers.2': nn.Dropout, 'drop_path': DropPath},
}
TYPES_V2 = {
    **TYPES_V1,
    **{
        'attn.w_msa': WindowAttentionV2,
        f'{ATTENTION_PREFIX}cpb_mlp': nn.Sequential,
        f'{ATTENTION_PREFIX}cpb_mlp.1': nn.ReLU,
    },
    **dict.fromkeys([f'{ATTENTION_PREFIX}cpb_mlp.0', f'{ATTENTION_PREFIX}cpb_mlp.2'], nn.Linear),
}
TYPES_V2_NORM3 = {**TYPES_V2, 'norm3': nn.LayerNorm}
PROJECTION_NORM = ['norm.weight', 'norm.bias']
BLOCKS = SwinBlock, SwinV2Block
record_methods([*BLOCKS, PatchEmbed, PatchMerging, nn.Conv2d, nn.Identity, *TYPES_V1.values(), *TYPES_V2.values()])


class BlockPlan(NamedTuple):
    """A block that is ready to run; see `replace.Plan`."""

    block: Any
    plan: NativePlan

    def __call__(self, x_BHWC: Tensor, out: Optional[Tensor] = None) -> Tensor:
        """Run the block, see `SwinBlock.forward`.

        Args:
            out: memory for the output, without gradients. The memory of the input is allowed.
        """
        drop_path, call = self.block.drop_path, {} if out is None else {'out': out}
        if drop_path.training and drop_path.drop_prob > 0:
            if torch.is_grad_enabled() and not needs_torch_op():
                call['random_state'] = torch.get_rng_state()
            call['drop_path_2B'] = _draw_drop_path(drop_path.drop_prob, len(x_BHWC))
        return self.plan(x_BHWC, **call)


def plan_block(block: Any, x_BHWC: Tensor) -> Union[BlockPlan, Reason]:
    """See `replace.Replacement`."""
    plan = plan_module(read_block, plan_layer, block, x_BHWC)
    return plan if isinstance(plan, str) else BlockPlan(block, plan)


def read_block(block: Any, x_BHWC: Tensor, stages: Stages = SWIN_T_STAGES) -> Union[NativeLayer, Reason]:
    """Return the `NativeLayer` of a block, or the reason why the library does not compute the block.

    Args:
        stages: channels and blocks of each stage of the backbone; the sizes decide what a training step saves.
    """
    is_v2 = isinstance(block, SwinV2Block)
    types = TYPES_V1 if not is_v2 else TYPES_V2 if block.norm3 is None else TYPES_V2_NORM3
    modules = read_modules(block, types)
    if isinstance(modules, str):
        return modules
    reason = _find_unsupported_setting(block, modules, x_BHWC)
    if reason is not None:
        return reason
    tensors: dict[str, Any] = {}
    for name, owner, attribute in NAMES_V2 if is_v2 else NAMES_V1:
        module = modules.get(owner)
        parameters = {} if module is None else module._parameters  # five times faster than getattr
        tensors[name] = parameters[attribute] if attribute in parameters else getattr(module, attribute, None)
    required = (*NAMES[:4], LOGIT_SCALE, *CPB) if is_v2 else (*NAMES[:4], BIAS_TABLE)
    if any(tensors[name] is None or not tensors[name].dim() for name in required):
        return f'{type(block).__name__} lacks a weight that it was built with.'
    attention, windows, C = modules['attn.w_msa'], block.windows(x_BHWC), x_BHWC.shape[3]
    if windows.pad_before != (0, 0) or windows[:2] != x_BHWC.shape[1:3]:
        return 'The compiled library pads at right and bottom alone.'
    if is_v2:
        h, hidden, bias_window = len(tensors[LOGIT_SCALE]), len(tensors[CPB[0]]), attention.pretrained_window
        shapes = [(h, 1, 1), (hidden, 2), (hidden,), (h, hidden), (C,), (C,)]
    else:
        h, bias_window = tensors[BIAS_TABLE].shape[-1], attention.window_size
        shapes = [((2 * bias_window[0] - 1) * (2 * bias_window[1] - 1), h)]
    dtype, has_gradients = dtype_and_gradients(block, x_BHWC, *tensors.values())
    eps = tuple(modules[name].eps for name in NORMS if name in types)
    saves = has_gradients and not getattr(block, 'with_cp', False) and saves_activations(dtype, C, stages)
    window_pair = windows.window_size, bias_window or windows.window_size
    if not is_v2 and any(side > of_table for side, of_table in zip(*window_pair)):
        return f'The table of position biases is for windows of {bias_window}, not {windows.window_size}.'
    settings = BlockSettings(h, len(tensors[f'{LINEARS[2]}.weight']), attention.scale, eps, window_pair[1])
    computation = BlockComputation(settings, windows, dtype, cache_of(block), saves)
    make_weights = partial(_make_weights, [*tensors], shapes, window_pair)
    return NativeLayer(computation, partial(forward_by_torch, [*tensors]), [*tensors.values()], make_weights)


def _find_unsupported_setting(block: Any, modules: Modules, x_BHWC: Tensor) -> Optional[Reason]:
    """Return which setting of a block the library lacks; None: it has all."""
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


def plan_stage(stage: Any, x_BHWC: Tensor, run_downsample: bool = True) -> Optional['StagePlan']:
    """See `replace.Replacement`. Without a plan, `SwinStage` calls its blocks."""
    plan = plan_module(read_stage, plan_blocks, stage, x_BHWC)
    return None if isinstance(plan, str) else plan


def plan_blocks(layers: Sequence[NativeLayer], stage: Any, shape: Sequence[int]) -> 'StagePlan':
    """Return the plan of a stage for maps of a shape; or raise `Unsupported`."""
    plans = [plan_layer(layer, block, shape) for block, layer in zip(stage.blocks, layers)]
    return StagePlan([*map(BlockPlan, stage.blocks, plans)], stage.downsample)


def read_stage(stage: Any, x_BHWC: Tensor) -> Union[list[NativeLayer], Reason]:
    """Return the `NativeLayer` of each block of a stage, or the reason why the library does not compute one."""
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

    def __call__(self, x_BHWC: Tensor, run_downsample: bool = True) -> tuple[Tensor, Tensor]:
        """Run the blocks and the patch merging of a stage, see `SwinStage.forward`.

        Without gradients, each block writes over the output of the block before. The input of the stage does not
        change.
        """
        out = None
        for block in self.blocks:
            x_BHWC = block(x_BHWC, out)
            out = None if torch.is_grad_enabled() or needs_torch_op() else x_BHWC
        return x_BHWC, self.downsample(x_BHWC) if run_downsample and self.downsample is not None else x_BHWC


def _make_weights(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], window_pair: tuple[Size, Size], *tensors: Any
) -> BlockWeights:
    """Return the library's weights from the tensors of a block. Raises `Unsupported`: a user may have replaced `.data`.

    Args:
        shapes: of the tensors that are not weights of the library themselves.
        window_pair: see `make_block_weights`.
    """
    for name, tensor, shape in zip(names[len(NAMES) :], tensors[len(NAMES) :], shapes):
        if tensor is not None and (tensor.shape != shape or tensor.dtype is not torch.float32):
            raise Unsupported(describe_unsupported(name, tensor, shape, torch.float32))
    return make_block_weights(dict(zip(names, tensors)), *window_pair)


def _draw_drop_path(rate: float, batch: int) -> Tensor:
    """Return the factors of the two branches for the images, 0 or 1 / (1 - rate): (2, B).

    The numbers are equal to those of `DropPath`: first for attention, then for the MLP.
    """
    return torch.rand(2, batch, dtype=torch.float32, device='cpu').add_(1 - rate).floor_().div_(1 - rate)


def read_projection(layer: Any, x: Tensor) -> Union[NativeLayer, Reason]:
    """Return the `NativeLayer` of patch embedding or patch merging, or the reason why there is none."""
    is_merging = isinstance(layer, PatchMerging)
    name, linear_type = ('reduction', nn.Linear) if is_merging else ('projection', nn.Conv2d)
    norm_type = nn.Identity if type(layer.norm) is nn.Identity else nn.LayerNorm
    modules = read_modules(layer, {name: linear_type, 'norm': norm_type})
    if isinstance(modules, str):
        return modules
    linear, norm, post_norm = modules[name], modules['norm'], not is_merging or layer.post_norm
    weight, eps = linear.weight, getattr(norm, 'eps', None)  # an identity has no eps
    if x.dim() != 4:
        return f'The compiled library takes a batch of four dimensions, not {list(x.shape)}.'
    if weight is None or weight.dim() != (2 if is_merging else 4):
        return f'The weight of {type(layer).__name__} is not as it was built.'
    if is_merging and layer.stride != 2:
        return f'The compiled library merges patches with a stride of 2, not {layer.stride}.'
    if is_merging and linear.bias is not None:
        return 'The compiled library has no bias in patch merging, and the reduction has one.'
    sides = tuple(weight.shape[2:])
    if not is_merging and (tuple(layer.patch_size), linear.stride, linear.padding, linear.dilation, linear.groups) != (
        *(sides, sides, (0, 0), (1, 1), 1),
    ):
        return f'The compiled library takes patches that do not overlap, not {linear}.'
    normed = len(weight) if post_norm else 4 * x.shape[3]
    if eps is not None and norm.normalized_shape != (normed,):
        return f'The compiled library normalises {normed} numbers, not {list(norm.normalized_shape)}.'
    parameters = weight, linear.bias, getattr(norm, 'weight', None), getattr(norm, 'bias', None)
    dtype, has_gradients = dtype_and_gradients(layer, x, *parameters)
    computation = ProjectionComputation(is_merging, eps, post_norm, dtype, cache_of(layer), has_gradients)
    by_torch = partial(forward_by_torch, [f'{name}.weight', f'{name}.bias', *PROJECTION_NORM])
    return NativeLayer(computation, by_torch, parameters)


plan_projection = partial(plan_module, read_projection, plan_layer)


def plan_output_norm(_: Any, x_BHWC: Tensor, norm: Any) -> Union[NativePlan, Reason, None]:
    """See `replace.Replacement`. A stage without an output norm has nothing to compute: torch copies the map."""
    return None if type(norm) is nn.Identity else plan_module(read_output_norm, plan_layer, norm, x_BHWC)


def read_output_norm(norm: Any, x_BHWC: Tensor) -> Union[NativeLayer, Reason]:
    """Return the `NativeLayer` of an output norm, or the reason why there is none."""
    is_plain = type(norm) is nn.LayerNorm and not is_changed(norm)
    if not is_plain or norm.normalized_shape != tuple(x_BHWC.shape[3:]):
        return f'The output norm is not a plain LayerNorm over {x_BHWC.shape[3]} channels, as it was built.'
    return norm_layer(norm)


def norm_layer(norm: nn.LayerNorm) -> NativeLayer:
    """Return the `NativeLayer` of a norm of tokens with a map as its output."""
    by_torch = partial(forward_by_torch, ['weight', 'bias'], forward=_normalise)
    return NativeLayer(OutputNormComputation(norm.eps), by_torch, (norm.weight, norm.bias))


def _normalise(norm: nn.LayerNorm, x_BHWC: Tensor) -> Tensor:
    normed = nn.functional.layer_norm(x_BHWC, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return normed.permute(0, 3, 1, 2)
