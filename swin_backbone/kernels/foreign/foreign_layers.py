"""Layers of other packages by the compiled library. A layer that has changed since `accelerate` computes by itself.

`origins.py` tells the blocks apart. `trial.py` compares each computation with the original.

Layout: B batch, T = H*W tokens of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Optional, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...checkpoints.formats import Format, columns_to_channels, convert_to_ours
from ...modes import find_linear_dtype
from ...replace import Unsupported
from ...sizes import Size, count_offsets
from ..changes import Modules, is_patched, read_modules, shadows_methods
from ..native.availability import find_reason_against
from ..native.computations import BlockWeights
from ..native.plans import LayerRecipe
from ..native.saved_blocks import SWIN_T_STAGES, Stages
from ..swin.blocks import BIAS_TABLE, COORDINATES, LOGIT_SCALE, NORMS, make_block_recipe, make_block_weights
from ..swin.by_torch import forward_by_torch
from ..swin.swin_layers import PROJECTION_NORM, make_norm_recipe, make_projection_recipe, read_norm
from .calls import CallArgs, bind_arguments, find_map, list_argument_names, list_modules
from .origins import POSITION_INDEX, Origin, find_origin

RECORD_ATTRIBUTE = '_swin_backbone_record'  # the attribute of an accelerated layer
BASE_CLASS_ATTRIBUTE = '_swin_backbone_base'  # the attribute of its class, a subclass of the layer's own
# Attributes that are compared at each call: of activations, mmcv's FFN and transformers' attention
COMPARED_SETTINGS = 'approximate', 'add_identity', 'scaling'
RATES = 'attn_drop_prob', 'attention_dropout', 'dropout'  # of attention layers
MERGINGS = (['x', 'input_size'], ['x', 'H', 'W'], ['x'], ['input_feature', 'input_dimensions'])


class LayerRecord(NamedTuple):
    """How the library computes a layer of another package, and the state of the layer when it was accelerated."""

    kind: str  # in the log
    run: Callable[[Any, Modules, 'LayerRecord', CallArgs], Any]  # returns the output, or raises `Unsupported`
    types: dict[str, type[nn.Module]]  # of the modules inside, by name
    settings: dict[str, Any]  # of the modules inside, see `COMPARED_SETTINGS`
    channels: int  # of the input
    origin: Any = None  # of a block: `Origin`
    names: Any = None  # of a block: `Names`
    stages: Stages = SWIN_T_STAGES  # of the Swin around the layer


def find_record(module: Any) -> Optional[LayerRecord]:
    """Return how the library computes a module that may be a layer of a Swin; None for other modules.

    Every LayerNorm and every module with a convolution `projection` is a candidate, until `accelerate` finds a Swin
    around it.
    """
    arguments, modules = list_argument_names(module), list_modules(module)
    types, settings = {name: type(inside) for name, inside in modules.items()}, _list_settings(modules)
    if isinstance(getattr(module, 'reduction', None), nn.Linear) and arguments in MERGINGS:
        return LayerRecord('merging', run_merging, types, settings, module.reduction.in_features // 4)
    if isinstance(getattr(module, 'projection', None), nn.Conv2d) and arguments in (['x'], ['pixel_values']):
        return LayerRecord('embedding', run_embedding, types, settings, module.projection.in_channels)
    if type(module) is nn.LayerNorm:
        return LayerRecord('norm', run_norm, types, settings, module.normalized_shape[-1])
    origin_and_names = find_origin(module)
    if origin_and_names is None:
        return None
    channels = next(len(inside.weight) for inside in modules.values() if isinstance(inside, nn.LayerNorm))
    return LayerRecord('block', run_block, types, settings, channels, *origin_and_names)


def read_accelerated(layer: Any, record: LayerRecord) -> Modules:
    """Return the modules inside a layer. Raises `Unsupported` for a layer that has changed since `accelerate`."""
    cls, modules = cast(Any, type(layer)), read_modules(layer, record.types)
    if shadows_methods(layer, cls) or is_patched(getattr(cls, BASE_CLASS_ATTRIBUTE, cls)):
        raise Unsupported('A call of the layer runs other code.')
    has_dropout = any(owner.training and getattr(owner, name) for owner, name in list_rates(modules, record))
    if has_dropout or _list_settings(modules) != record.settings:
        raise Unsupported('The layer has dropout, or another setting.')
    return modules


def try_native(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Return the output of a call by the library; None: the layer's own forward computes."""
    record: Optional[LayerRecord] = vars(layer).get(RECORD_ATTRIBUTE)
    if record is None:
        return None
    call_args = bind_arguments(layer, args, kwargs)
    x = next(iter((call_args or {}).values()), None)
    if call_args is None or not isinstance(x, Tensor) or find_reason_against(x) is not None:
        return None
    try:
        return record.run(layer, read_accelerated(layer, record), record, call_args)
    except Unsupported:
        return None


def _list_settings(modules: Modules) -> dict[str, Any]:
    return {
        f'{path}.{name}': vars(module)[name]
        for path, module in modules.items()
        for name in COMPARED_SETTINGS
        if name in vars(module)
    }


def list_rates(modules: Modules, record: LayerRecord) -> list[tuple[Any, str]]:
    """Return owner and attribute of each rate that must be 0 in training: dropout, and drop path of some origins."""
    names = (*RATES, 'drop_prob') if record.origin and not record.origin.drop_paths else RATES
    rates = [(module, name) for module in modules.values() for name in names if vars(module).get(name)]
    return rates + [(module, 'p') for module in modules.values() if isinstance(module, nn.Dropout)]


def run_block(block: Any, modules: Modules, record: LayerRecord, call_args: CallArgs) -> Any:
    """Return the output of a block; or raise `Unsupported`."""
    x_BHWC, x = find_map(block, call_args), next(iter(call_args.values()))
    recipe = _read_foreign_block(block, modules, record, call_args, x_BHWC)
    y = recipe.plan(block, x_BHWC.shape)(x_BHWC).view(x.shape).to(x_BHWC.dtype)
    if record.origin.format.name != 'hf':
        return y
    return (y, None) if hasattr(block.attention, 'o_proj') else (y,)  # a pair since release 5


def _read_foreign_block(
    block: Any, modules: Modules, record: LayerRecord, call_args: CallArgs, x_BHWC: Tensor
) -> LayerRecipe:
    """Return the recipe of a block for a call; or raise `Unsupported`."""
    if call_args.get('output_attentions') or call_args.get('head_mask') is not None:
        raise Unsupported('The compiled library returns no attention weights, and masks no heads.')
    origin = record.origin
    windows = origin.read_windows(block, call_args, (x_BHWC.shape[1], x_BHWC.shape[2]))
    owners = {ours: modules[path.rpartition('.')[0]] for ours, path in record.names.items()}
    tensors = {ours: getattr(owners[ours], path.rpartition('.')[2]) for ours, path in record.names.items()}
    is_v2 = LOGIT_SCALE in tensors
    rows = tensors[COORDINATES].numel() // 2 if is_v2 else len(tensors[BIAS_TABLE])
    if windows is None or rows != count_offsets(windows.window_size):
        raise Unsupported('The compiled library lacks the windows of the call, or the position biases are of others.')
    scale = 1.0
    if not is_v2:
        head_channels = x_BHWC.shape[3] // tensors[BIAS_TABLE].shape[-1]
        attention = owners[POSITION_INDEX]  # the module that has the index
        scale = getattr(attention, 'scale', head_channels**-0.5)
    (_, x), *others = call_args.items()
    return make_block_recipe(
        block,
        x_BHWC,
        tensors=tensors,
        windows=windows,
        bias_window=windows.window_size,
        scale=scale,
        eps=tuple(owners[f'{name}.weight'].eps for name in NORMS if f'{name}.weight' in owners),
        stages=record.stages,
        by_torch=partial(_call_original, [*record.names.values()], dict(others), x.shape),
        make_weights=partial(_make_our_weights, origin.format, windows.window_size, [*tensors]),
        draw_drop_path=partial(_draw_original_drop_path, block, origin),
        pads_first=origin.pads_first,
    )


def _make_our_weights(format: Format, window_size: Size, names: list[str], *tensors: Any) -> BlockWeights:
    """Return the library's weights from the tensors of a block, which have our names."""
    w = convert_to_ours({name: tensor for name, tensor in zip(names, tensors) if tensor is not None}, format)
    return make_block_weights(w, window_size, window_size)


def _draw_original_drop_path(block: nn.Module, origin: Origin, x_BHWC: Tensor) -> Optional[Tensor]:
    """Return the factors of both branches, (2, B), drawn by the original's modules; None: all are 1."""
    modules = [block.get_submodule(name) for name in origin.drop_paths.split()]
    if all(type(module) is nn.Identity or not module.training for module in modules):
        return None
    ones_B11 = x_BHWC.new_ones(len(x_BHWC), 1, 1, dtype=torch.float32)
    return torch.stack([*(module(ones_B11).flatten() for module in modules), ones_B11.flatten()][:2])


def run_merging(module: Any, modules: Modules, record: LayerRecord, call_args: CallArgs) -> Any:
    """Return the output of patch merging; or raise `Unsupported`."""
    x_BHWC = find_map(module, call_args)
    if module.reduction.bias is not None:
        raise Unsupported('The compiled library has no bias in patch merging, and the reduction has one.')
    norm_weight, norm_bias, eps = read_norm(module.norm)
    tensors: list[Any] = [module.reduction.weight, None, norm_weight, norm_bias]
    inputs, is_unfold = module.reduction.in_features, hasattr(module, 'sampler')

    def make_weights(*tensors: Optional[Tensor]) -> list[Optional[Tensor]]:
        if is_unfold:
            return [*tensors]  # the norm of V2 is behind the reduction
        return [columns_to_channels(w) if w is not None and w.shape[-1] == inputs else w for w in tensors]

    post_norm = norm_weight is not None and len(norm_weight) != inputs
    (_, x), *others = call_args.items()
    names = ['reduction.weight', 'reduction.bias', *PROJECTION_NORM]
    recipe = make_projection_recipe(
        module, x_BHWC, tensors, is_merging=True, eps=eps, post_norm=post_norm,
        by_torch=partial(_call_original, names, dict(others), x.shape), make_weights=make_weights,
    )  # fmt: skip
    y_BHWC = recipe.plan(module, x_BHWC.shape)(x_BHWC)
    y = y_BHWC if x.dim() == 4 else y_BHWC.flatten(1, 2)
    return (y, tuple(y_BHWC.shape[1:3])) if is_unfold else y.to(find_linear_dtype(x_BHWC))


def run_embedding(module: Any, modules: Modules, record: LayerRecord, call_args: CallArgs) -> Any:
    """Return the output of patch embedding; or raise `Unsupported`."""
    (x,), conv = call_args.values(), module.projection
    is_patches = (conv.stride, conv.padding, conv.dilation, conv.groups) == (conv.kernel_size, (0, 0), (1, 1), 1)
    if not is_patches or x.dim() != 4:
        raise Unsupported('The compiled library takes patches that do not overlap, of a batch of images.')
    norm_weight, norm_bias, eps = read_norm(getattr(module, 'norm', None))
    tensors = conv.weight, conv.bias, norm_weight, norm_bias
    names = ['projection.weight', 'projection.bias', *PROJECTION_NORM]
    by_torch = partial(_call_original, names, {}, x.shape)
    recipe = make_projection_recipe(module, x, tensors, is_merging=False, eps=eps, post_norm=True, by_torch=by_torch)
    y_BHWC = recipe.plan(module, x.shape)(x)
    # OpenMMLab's maps stay float32 under autocast until an output norm rounds them.
    y = y_BHWC.flatten(1, 2) if 'x' in call_args else y_BHWC.flatten(1, 2).to(find_linear_dtype(x))
    return y, tuple(y_BHWC.shape[1:3])


def run_norm(norm: Any, modules: Modules, record: LayerRecord, call_args: CallArgs) -> Any:
    """Return (B, T, C) as a view of memory (B, C, T): the caller's permute to a map then needs no copy."""
    x_BTC = call_args['input']
    if x_BTC.dim() != 3 or norm.normalized_shape != (x_BTC.shape[2],):
        raise Unsupported('The compiled library normalises each token of (B, T, C).')
    x_BT1C = x_BTC[:, :, None]
    y_BCT = make_norm_recipe(norm).plan(norm, x_BT1C.shape)(x_BT1C)[..., 0]
    return y_BCT.transpose(1, 2).to(find_linear_dtype(x_BTC))


def _call_original(
    names: list[str],
    call_args: CallArgs,
    shape: torch.Size,
    layer: Any,
    x: Tensor,
    *tensors: Any,
    random_state: Optional[Tensor] = None,
) -> Tensor:
    """Return the first tensor of the original's forward, which takes `x` in the given shape.

    Args:
        names: of the tensors in the layer.
        call_args: the arguments after the first.
    """

    def forward(layer: Any, x: Tensor) -> Tensor:
        return tree_leaves(type(layer).forward(layer, x.reshape(shape), **call_args))[0]

    return forward_by_torch(names, layer, x, *tensors, random_state=random_state, forward=forward)
