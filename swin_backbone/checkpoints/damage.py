"""Damaged weights: missing, of wrong shapes, quantised or not finite. Names are this package's (see formats.py).

A function `check_...` raises CheckpointError with the name of the first damaged weight.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..checks import list_first
from ..sizes import Size, count_offsets, format_size
from .errors import CheckpointError, name_in_errors
from .formats import SWIN_V2
from .shapes import BLOCK_PATTERN, FIRST_LINEAR, PROJECTION, find_sizes

FLOATING_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OUTSIDE_STAGES = re.compile(r'(patch_embed\.\w+|norm\d*|head)\.(weight|bias)')


def list_missing(weights: Mapping[str, Tensor], family: str) -> list[str]:
    """Return the names of missing weights.

    A weight of one block must be in every block, and a weight of one merging in every merging. A weight outside the
    stages has a bias.

    Args:
        weights: a backbone, with or without a classifier's `norm` and `head`.
    """
    depths = find_sizes(weights, family).depths
    first = 1 if family == SWIN_V2 else 0  # V2 merges before the blocks of a stage
    if not first and f'stages.{len(depths) - 1}.downsample.reduction.weight' in weights:
        depths = (*depths, 1)  # the last stage is missing
    blocks = [f'stages.{stage}.blocks.{block}.' for stage, depth in enumerate(depths) for block in range(depth)]
    mergings = [f'stages.{first + stage}.downsample.' for stage in range(len(depths) - 1)]
    expected = [PROJECTION, FIRST_LINEAR]
    for match in filter(None, map(_OUTSIDE_STAGES.fullmatch, weights)):
        expected += [f'{match[1]}.weight', f'{match[1]}.bias']
    for owners in (blocks, mergings):
        leaves = dict.fromkeys(
            name.removeprefix(owner) for owner in owners for name in weights if name.startswith(owner)
        )
        # `norm3` is in every n-th block of Swin V2
        expected += [owner + leaf for owner in owners for leaf in leaves if not leaf.startswith('norm3.')]
    return list(dict.fromkeys(name for name in expected if name not in weights))


def check_shapes(weights: Mapping[str, Tensor]) -> None:
    """Compare a weight with its bias, the sides of patches and reductions, and the dimensions of a block's weights."""
    dimensions: dict[str, int] = {}  # by the name within a block
    for name, weight in weights.items():
        shape, bias = tuple(weight.shape), weights.get(f'{name.removesuffix("weight")}bias')
        is_damaged = bias is not None and bias.shape != shape[:1]
        is_damaged |= name == 'absolute_pos_embed' and len(shape) != 3
        if name == PROJECTION:
            is_damaged |= len(shape) != 4 or shape[2] != shape[3]
        if name.endswith('reduction.weight'):
            is_damaged |= len(shape) != 2 or shape[1] != 2 * shape[0]
        if BLOCK_PATTERN.match(name):
            is_damaged |= dimensions.setdefault(BLOCK_PATTERN.sub('', name), len(shape)) != len(shape)
        if is_damaged:
            others = '' if bias is None else f' and its bias {tuple(bias.shape)}'
            raise CheckpointError(f'{name} has shape {shape}{others}: the file is damaged')


def check_axes(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights without axes or numbers. A counter of batch norm has no axis."""
    for key, value in weights.items():
        if not (value.dim() and value.numel()) and not key.endswith('.num_batches_tracked'):
            raise CheckpointError(
                f'{key} has shape {tuple(value.shape)}, and weights of a Swin have axes and numbers: the file '
                'is damaged'
            )


def check_tables(weights: Mapping[str, Tensor], window_sizes: Mapping[str, Size]) -> None:
    """Compare each bias table with the window that the file names, by the name of the table."""
    for key, window in window_sizes.items():
        table = weights.get(key)
        if table is not None and table.dim() and len(table) != count_offsets(window):
            raise CheckpointError(
                f'{key} has {len(table)} rows, and the window {format_size(window)} in the file has '
                f'{count_offsets(window)}: the file is damaged'
            )


def check_floating(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of a quantised dtype, whose scale torch would lose. A counter, as of batch norm, has no axis."""
    for key, value in weights.items():
        if value.dtype not in FLOATING_DTYPES and value.dim():
            raise CheckpointError(
                f'{key} is stored as {value.dtype}, as of a quantised model, whose scales are elsewhere: save the '
                'model in float32, float16 or bfloat16'
            )


def check_finite(model: nn.Module, weights: Mapping[str, Tensor], checkpoint: str) -> None:
    """Check the numbers of the weights of a model; see `check_numbers`. `checkpoint` is the name in an error."""
    floating = {key for key, parameter in model.named_parameters() if parameter.is_floating_point()}
    parameters = {key: value for key, value in weights.items() if key in floating}
    buffers = {key: weights[key] for key, _ in model.named_buffers() if key in weights}
    with name_in_errors(checkpoint):
        check_numbers(parameters, buffers)
        dtypes = {key: value.dtype for key, value in (*model.named_parameters(), *model.named_buffers())}
        for key, value in {**parameters, **buffers}.items():
            dtype = dtypes[key]
            if dtype != value.dtype and dtype.is_floating_point and (value.to(dtype).isinf() & value.isfinite()).any():
                raise CheckpointError(
                    f'{key} has numbers up to {value.abs().max().item():.5g}, and the {dtype} of the model ends at '
                    f'{torch.finfo(dtype).max:.5g}: load the weights into a model of a wider dtype'
                )


def check_numbers(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Refuse weights that are NaN, infinite or quantised. Buffers may be infinite, as some masks are."""
    check_floating(parameters)
    broken = [key for key, value in parameters.items() if not value.isfinite().all()]
    broken += [key for key, value in buffers.items() if value.is_floating_point() and value.isnan().any()]
    if broken:
        raise CheckpointError(
            f'{len(broken)} of its {len(parameters) + len(buffers)} weights are not finite (NaN or infinite): '
            f'{list_first(broken)}; its training has diverged, or the file is damaged'
        )
