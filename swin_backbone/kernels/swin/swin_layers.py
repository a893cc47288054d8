"""The Swin layers of this package by the compiled library: stages, blocks, patches, patch merging, output norms.

`plan_...` returns the plan of a call. It reads the recipe of a module by `read_...`, which raises `Unsupported` if the
library does not compute the module.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ...models.layers import PatchEmbed, PatchMerging
from ...models.layers.attention import ShiftedWindowAttention, WindowAttention
from ...models.layers.block import DropPath, SwinBlock
from ...models.layers.swin_v2_block import SwinV2Block, WindowAttentionV2
from ...modes import needs_torch_op
from ...replace import Plan, PlanOrReason, Unsupported
from ...sizes import Size, count_offsets
from ..changes import Modules, is_changed, read_modules, remember_methods
from ..native.availability import find_dtype_and_gradients
from ..native.computations import BlockWeights, OutputNormComputation, ProjectionComputation
from ..native.interface import MakeWeights, Weights, as_given
from ..native.memory import find_cache, refuse_tensor
from ..native.plans import LayerRecipe, plan_module
from ..native.saved_blocks import SWIN_T_STAGES, Stages
from .blocks import (
    BIAS_TABLE,
    CPB,
    LINEAR_WEIGHTS,
    LOGIT_SCALE,
    NORMS,
    QKV_BIASES,
    WEIGHTS,
    make_block_recipe,
    make_block_weights,
)
from .by_torch import forward_by_torch

# A block's tensors: the name, the name of the module that owns the tensor, the attribute of the module.
TENSORS_V1 = [(name, *name.rsplit('.', 1)) for name in (*WEIGHTS, BIAS_TABLE)]
TENSORS_V2 = [(name, *name.rsplit('.', 1)) for name in (*WEIGHTS, LOGIT_SCALE, *CPB, *QKV_BIASES)]
REQUIRED_V1 = *LINEAR_WEIGHTS, BIAS_TABLE
REQUIRED_V2 = *LINEAR_WEIGHTS, LOGIT_SCALE, *CPB
# Types of the modules inside a block, by name.
TYPES_V1 = {
    'norm1': nn.LayerNorm,
    'norm2': nn.LayerNorm,
    'attn': ShiftedWindowAttention,
    'attn.w_msa': WindowAttention,
    'attn.w_msa.qkv': nn.Linear,
    'attn.w_msa.proj': nn.Linear,
    'attn.w_msa.proj_drop': nn.Dropout,
    'ffn': nn.Sequential,
    'ffn.layers': nn.Sequential,
    'ffn.layers.0': nn.Sequential,
    'ffn.layers.0.0': nn.Linear,
    'ffn.layers.0.1': nn.GELU,
    'ffn.layers.0.2': nn.Dropout,
    'ffn.layers.1': nn.Linear,
    'ffn.layers.2': nn.Dropout,
    'drop_path': DropPath,
}
TYPES_V2 = {
    **TYPES_V1,
    'attn.w_msa': WindowAttentionV2,
    'attn.w_msa.cpb_mlp': nn.Sequential,
    'attn.w_msa.cpb_mlp.0': nn.Linear,
    'attn.w_msa.cpb_mlp.1': nn.ReLU,
    'attn.w_msa.cpb_mlp.2': nn.Linear,
}
TYPES = {  # by (whether a block is of V2, whether it has a third norm)
    (False, False): TYPES_V1,
    (True, False): TYPES_V2,
    (True, True): {**TYPES_V2, 'norm3': nn.LayerNorm},
}
PROJECTION_NORM = ['norm.weight', 'norm.bias']
BLOCKS = SwinBlock, SwinV2Block
remember_methods([*BLOCKS, PatchEmbed, PatchMerging, nn.Conv2d, nn.Identity, *TYPES_V1.values(), *TYPES_V2.values()])


def plan_stage(stage: Any, x_BHWC: Tensor, needs_next: bool = True) -> Optional[Plan]:
    """See `replace.Replacement`. Without a plan, `SwinStage` calls its blocks."""
    plan = plan_module(read_stage, stage, x_BHWC)
    return None if isinstance(plan, str) else plan


class StageRecipe(NamedTuple):
    """How the library computes the blocks of a stage."""

    blocks: list[LayerRecipe]

    def plan(self, module: Any, shape: Sequence[int]) -> Plan:
        """Return the plan of the stage for maps of a shape; or raise `Unsupported`."""
        blocks = [recipe.plan(block, shape) for block, recipe in zip(module.blocks, self.blocks)]
        return partial(_run_stage, blocks, module.downsample)


def _run_stage(
    blocks: Sequence[Any], downsample: Optional[nn.Module], x_BHWC: Tensor, needs_next: bool = True
) -> tuple[Tensor, Tensor]:
    """Run the plans of a stage's blocks, and the patch merging; see `SwinStage.forward`.

    Without gradients, each block writes over the output of the block before. The input of the stage does not change.
    """
    overwrites = not torch.is_grad_enabled() and not needs_torch_op()
    for index, block in enumerate(blocks):
        x_BHWC = block(x_BHWC, out=x_BHWC) if overwrites and index > 0 else block(x_BHWC)
    return x_BHWC, downsample(x_BHWC) if needs_next and downsample is not None else x_BHWC


def read_stage(stage: Any, x_BHWC: Tensor) -> StageRecipe:
    """Return the recipe of a stage, of which the library computes all blocks; or raise `Unsupported`."""
    recipes = []
    for block in stage.blocks:
        if type(block) not in BLOCKS or is_changed(block) or block.backend not in ('auto', 'native'):
            raise Unsupported(f'A call of {type(block).__name__} runs other code, or has another backend.')
        recipes.append(read_block(block, x_BHWC, stage.backbone_stages))
    return StageRecipe(recipes)


def read_block(block: Any, x_BHWC: Tensor, stages: Stages = SWIN_T_STAGES) -> LayerRecipe:
    """Return the recipe of a block; or raise `Unsupported`.

    Args:
        stages: of the backbone, see `make_block_recipe`.
    """
    is_v2 = isinstance(block, SwinV2Block)
    types = TYPES[is_v2, is_v2 and block.norm3 is not None]
    modules = read_modules(block, types)
    _require_settings(modules, x_BHWC)
    tensors: dict[str, Any] = {}
    for name, owner, attribute in TENSORS_V2 if is_v2 else TENSORS_V1:
        module = modules.get(owner)
        parameters = {} if module is None else module._parameters  # five times faster than getattr
        tensors[name] = parameters[attribute] if attribute in parameters else getattr(module, attribute, None)
    if any(tensors[name] is None or not tensors[name].dim() for name in (REQUIRED_V2 if is_v2 else REQUIRED_V1)):
        raise Unsupported(f'{type(block).__name__} lacks a weight that it was built with.')
    windows, attention, drop_path = block.windows(x_BHWC), modules['attn.w_msa'], modules['drop_path']
    if windows.pad_before != (0, 0):
        raise Unsupported('The compiled library pads at right and bottom alone.')
    C = x_BHWC.shape[3]
    if is_v2:
        bias_window = attention.pretrained_window or windows.window_size
        h, hidden = len(tensors[LOGIT_SCALE]), len(tensors[CPB[0]])
        sizes = (h, 1, 1), (hidden, 2), (hidden,), (h, hidden), (C,), (C,)
        shapes = dict(zip((LOGIT_SCALE, *CPB, *QKV_BIASES), sizes))
    else:
        bias_window = attention.window_size
        shapes = {BIAS_TABLE: (count_offsets(bias_window), tensors[BIAS_TABLE].shape[-1])}
        if any(side > table_side for side, table_side in zip(windows.window_size, bias_window)):
            raise Unsupported(
                f'The table of position biases is for windows of {bias_window}, not {windows.window_size}.'
            )
    is_dropping = drop_path.training and drop_path.drop_prob != 0
    return make_block_recipe(
        block,
        x_BHWC,
        tensors=tensors,
        windows=windows,
        bias_window=bias_window,
        scale=attention.scale,
        eps=tuple(modules[name].eps for name in NORMS if name in types),
        stages=stages,
        by_torch=partial(forward_by_torch, [*tensors]),
        make_weights=partial(_make_checked_weights, [*tensors], shapes, windows.window_size, bias_window),
        draw_drop_path=partial(_draw_drop_path, drop_path.drop_prob) if is_dropping else None,
    )


plan_block = partial(plan_module, read_block)


def _require_settings(modules: Modules, x_BHWC: Tensor) -> None:
    """Raise `Unsupported` for a setting of a block's modules that the library lacks."""
    attention = modules['attn.w_msa']
    dropouts = attention.proj_drop, modules['ffn.layers.0.2'], modules['ffn.layers.2']
    if attention.backend not in ('auto', 'native'):
        raise Unsupported(f'The backend of the attention is {attention.backend!r}.')
    if modules['ffn.layers.0.1'].approximate != 'none':
        raise Unsupported('The compiled library has exact GELU alone.')
    if any(dropout.p and dropout.training for dropout in dropouts) or (attention.attn_drop_rate and attention.training):
        raise Unsupported('The compiled library has no dropout, and a dropout rate is above 0.')
    names = ('attn.w_msa.qkv', 'attn.w_msa.cpb_mlp.2') if 'attn.w_msa.cpb_mlp' in modules else ()
    if any(modules[name].bias is not None for name in names):
        raise Unsupported(f'The compiled library takes {" and ".join(names)} without bias, and one has a bias.')
    if isinstance(attention.scale, Tensor):
        raise Unsupported('The compiled library takes a number as the scale of attention, not a tensor.')
    channels = tuple(x_BHWC.shape[3:])
    norms = [modules[name] for name in NORMS if name in modules]
    if any(norm.normalized_shape != channels for norm in norms):
        raise Unsupported(f'The compiled library normalises each token of a map, and the map is {list(x_BHWC.shape)}.')


def _make_checked_weights(
    names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], window_size: Size, bias_window: Size, *tensors: Any
) -> BlockWeights:
    """Return the library's weights from the tensors of a block. Raises `Unsupported`: a user may have replaced `.data`.

    Args:
        shapes: of the tensors that `make_block_weights` converts. `BlockComputation.pack` checks the others.
    """
    w = dict(zip(names, tensors))
    for name, shape in shapes.items():
        tensor = w[name]
        if tensor is not None and (tensor.shape != shape or tensor.dtype is not torch.float32):
            refuse_tensor(name, tensor, shape, torch.float32)
    return make_block_weights(w, window_size, bias_window)


def _draw_drop_path(rate: float, x_BHWC: Tensor) -> Tensor:
    """Return the factors of the two branches for the maps, 0 or 1 / (1 - rate): (2, B).

    In float32 the numbers are those of `DropPath`: first for attention, then for the MLP.
    """
    return torch.rand(2, len(x_BHWC), dtype=torch.float32, device='cpu').add_(1 - rate).floor_().div_(1 - rate)


def read_projection(layer: Any, x: Tensor) -> LayerRecipe:
    """Return the recipe of patch embedding or patch merging; or raise `Unsupported`."""
    is_merging = isinstance(layer, PatchMerging)
    name, linear_type = ('reduction', nn.Linear) if is_merging else ('projection', nn.Conv2d)
    norm_type = nn.Identity if type(layer.norm) is nn.Identity else nn.LayerNorm
    modules = read_modules(layer, {name: linear_type, 'norm': norm_type})
    linear, norm = modules[name], modules['norm']
    weight, post_norm = linear.weight, not is_merging or layer.post_norm
    norm_weight, norm_bias, eps = read_norm(norm)
    if x.dim() != 4:
        raise Unsupported(f'The compiled library takes a batch of four dimensions, not {list(x.shape)}.')
    if weight is None or weight.dim() != (2 if is_merging else 4):
        raise Unsupported(f'The weight of {type(layer).__name__} is not as it was built.')
    if is_merging and layer.stride != 2:
        raise Unsupported(f'The compiled library merges patches with a stride of 2, not {layer.stride}.')
    if is_merging and linear.bias is not None:
        raise Unsupported('The compiled library has no bias in patch merging, and the reduction has one.')
    if not is_merging:
        sides = tuple(weight.shape[2:])
        geometry = tuple(layer.patch_size), linear.stride, linear.padding, linear.dilation, linear.groups
        if geometry != (sides, sides, (0, 0), (1, 1), 1):
            raise Unsupported(f'The compiled library takes patches that do not overlap, not {linear}.')
    normed = len(weight) if post_norm else 4 * x.shape[3]
    if eps is not None and norm.normalized_shape != (normed,):
        raise Unsupported(f'The compiled library normalises {normed} numbers, not {list(norm.normalized_shape)}.')
    parameters = weight, linear.bias, norm_weight, norm_bias
    by_torch = partial(forward_by_torch, [f'{name}.weight', f'{name}.bias', *PROJECTION_NORM])
    return make_projection_recipe(
        layer, x, parameters, is_merging=is_merging, eps=eps, post_norm=post_norm, by_torch=by_torch
    )


plan_projection = partial(plan_module, read_projection)


def make_projection_recipe(
    layer: nn.Module,
    x: Tensor,
    parameters: Weights,
    *,
    is_merging: bool,
    eps: Optional[float],
    post_norm: bool,
    by_torch: Callable[..., Tensor],
    make_weights: MakeWeights = as_given,
) -> LayerRecipe:
    """Return the recipe of patch embedding or merging. For the arguments see `ProjectionComputation`, `LayerRecipe`."""
    dtype, has_gradients = find_dtype_and_gradients(layer, x, *parameters)
    computation = ProjectionComputation(is_merging, eps, post_norm, dtype, find_cache(layer), has_gradients)
    return LayerRecipe(computation, by_torch, parameters, make_weights)


def read_norm(norm: Optional[nn.Module]) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    """Return weight, bias and eps of a norm; (None, None, None) for `nn.Identity` and None."""
    return getattr(norm, 'weight', None), getattr(norm, 'bias', None), getattr(norm, 'eps', None)


def plan_output_norm(stage: Any, x_BHWC: Tensor, norm: Any) -> PlanOrReason:
    """See `replace.Replacement`. A stage without an output norm has nothing to compute: torch copies the map."""
    plan = None if type(norm) is nn.Identity else plan_module(read_output_norm, norm, x_BHWC)
    return plan if plan is None or isinstance(plan, str) else lambda x_BHWC, norm: plan(x_BHWC)


def read_output_norm(norm: Any, x_BHWC: Tensor) -> LayerRecipe:
    """Return the recipe of an output norm; or raise `Unsupported`."""
    is_plain = type(norm) is nn.LayerNorm and not is_changed(norm)
    if not is_plain or norm.normalized_shape != tuple(x_BHWC.shape[3:]):
        raise Unsupported(f'The output norm is not a plain LayerNorm over {x_BHWC.shape[3]} channels, as it was built.')
    return make_norm_recipe(norm)


def make_norm_recipe(norm: nn.LayerNorm) -> LayerRecipe:
    """Return the recipe of a norm of tokens with a map as its output."""
    by_torch = partial(forward_by_torch, ['weight', 'bias'], forward=_normalise)
    return LayerRecipe(OutputNormComputation(norm.eps), by_torch, (norm.weight, norm.bias))


def _normalise(norm: nn.LayerNorm, x_BHWC: Tensor) -> Tensor:
    normed = nn.functional.layer_norm(x_BHWC, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return normed.permute(0, 3, 1, 2)
