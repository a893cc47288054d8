"""Checks of the arguments of backbones: a value that would silently build a different model is an error.

Norms and activations that a config names are those of torch, and the types of mmcv's registry.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from torch import nn

from ..archs import Arch
from ..checks import check_choice, check_int, check_sequence, check_size, check_type, is_int, refusal
from ..sizes import Size

Pair = Union[int, Sequence[int]]  # (height, width), or a number for height and width
WindowSize = Union[int, Sequence[Pair]]  # a window for all stages, or a list of windows
InitCfg = Union[dict[str, Any], list[dict[str, Any]], None]

DEFAULT_STRIDES = (4, 2, 2, 2)


class StageSizes(NamedTuple):
    """The sizes of the stages; each field has an entry for every stage."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_sizes: tuple[Size, ...]


def check_sizes(
    archs: Mapping[str, Arch], arch: Optional[str], embed_dims: Any, depths: Any, num_heads: Any, window_size: Any
) -> StageSizes:
    """Return the sizes of the stages. None takes the size of `arch`, or of 'tiny' if `arch` is None."""
    published = archs[str(check_choice('arch', 'tiny' if arch is None else arch, archs))]
    width = published.embed_dims if embed_dims is None else check_int('embed_dims', embed_dims, least=1)
    depths = published.depths if depths is None else _check_ints('depths', depths)
    num_heads = published.num_heads if num_heads is None else _check_ints('num_heads', num_heads)
    if len(depths) != len(num_heads):
        raise ValueError(
            f'depths and num_heads take one entry for each stage, got depths={depths} and num_heads={num_heads}'
        )
    widths = tuple(width << stage for stage in range(len(depths)))
    for stage, heads in enumerate(num_heads):
        if widths[stage] % heads:
            allowed = f'a divisor of the width of stage {stage}, embed_dims * {1 << stage} = {widths[stage]}'
            raise ValueError(refusal(f'num_heads[{stage}]', allowed, heads))
    return StageSizes(widths, depths, num_heads, _check_window_sizes(window_size, len(depths)))


def _check_ints(name: str, value: object, length: Optional[int] = None) -> tuple[int, ...]:
    allowed = f'a list of{f" {length}" if length else ""} whole numbers of at least 1, one for each stage'
    return tuple(check_int(name, entry, least=1) for entry in check_sequence(name, value, allowed, length))


def check_patches(strides: object, patch_size: object, num_stages: int) -> tuple[tuple[int, ...], Size]:
    """Check strides and the size of patches. Fewer stages take the first of the default strides."""
    numbers = _check_ints('strides', strides)
    if numbers == DEFAULT_STRIDES:
        numbers = numbers[:num_stages]
    _check_ints('strides', numbers, num_stages)  # one for each stage
    patch = numbers[0]
    if check_size('patch_size', patch_size) != (patch, patch):
        raise ValueError(refusal('patch_size', f'strides[0] = {patch}, because patches do not overlap', patch_size))
    return numbers, (patch, patch)


def _check_window_sizes(value: Any, num_stages: int) -> tuple[Size, ...]:
    """Check a window for all stages, or a list of windows. Two ints are (height, width), even with two stages."""
    allowed = f'a whole number of at least 1, a pair (height, width), or a list of {num_stages}, one for each stage'
    entries = (value,) if is_int(value) else check_sequence('window_size', value, allowed)
    if len(entries) <= 2 and all(map(is_int, entries)):
        return (check_size('window_size', value),) * num_stages
    entries = check_sequence('window_size', value, allowed, num_stages)
    return tuple(check_size(f'window_size[{stage}]', entry) for stage, entry in enumerate(entries))


def check_pretrained_window_sizes(value: object, num_stages: int) -> tuple[Optional[Size], ...]:
    """Check the windows of the stages in pre-training. None, or an entry of 0, is the stage's own window."""
    name, allowed = 'pretrained_window_sizes', f'a list of {num_stages} windows, one for each stage, or None'
    entries = check_sequence(name, (0,) * num_stages if value is None else value, allowed, num_stages)
    return tuple(None if entry == 0 else check_size(f'{name}[{stage}]', entry) for stage, entry in enumerate(entries))


def check_out_indices(value: object, num_stages: int) -> tuple[int, ...]:
    """Check `out_indices`, and return the stages in ascending order. None is the last stage."""
    allowed = f'a list of different stages from 0 to {num_stages - 1}'
    stages = check_sequence('out_indices', (num_stages - 1,) if value is None else value, allowed)
    stages = tuple(sorted(check_int('out_indices', stage) for stage in stages))
    if len(set(stages)) < len(stages) or not set(stages) <= set(range(num_stages)):
        raise ValueError(refusal('out_indices', allowed, value))
    return stages


def build_norm(norm_cfg: Mapping[str, Any], channels: int) -> nn.Module:
    """Return a norm of the last dimension.

    Args:
        norm_cfg: `type`, 'LN', a class or its name in torch.nn, or a name in mmcv's registry; `requires_grad`, True by
            default; and arguments of the norm, as `eps`.
        channels: of the last dimension.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read_type('norm_cfg', norm_cfg)
    if kind is None:
        return _import_cnn('norm_cfg', norm_cfg).build_norm_layer(norm_cfg, channels)[1]
    is_trained = options.pop('requires_grad', True)
    return kind(channels, **{'eps': 1e-5, **options}).requires_grad_(is_trained)  # eps as mmcv's, for all norms


def build_activation(act_cfg: Mapping[str, Any]) -> nn.Module:
    """Return an activation.

    Args:
        act_cfg: `type`, a class of torch as 'GELU' or an activation of mmcv's registry, and arguments of the
            activation.

    Raises:
        ImportError: for a type of mmcv's registry, if mmcv is not installed.
    """
    kind, options = _read_type('act_cfg', act_cfg)
    if kind is None:
        return _import_cnn('act_cfg', act_cfg).build_activation_layer(act_cfg)
    return kind(**options)


def _read_type(name: str, config: Mapping[str, Any]) -> tuple[Optional[Callable[..., nn.Module]], dict[str, Any]]:
    """Return the class of a layer, None if torch has no class of the name, and the layer's other arguments."""
    options = {**check_type(name, config, Mapping, "a dict with 'type'")}
    if 'type' not in options:
        raise ValueError(refusal(name, "a dict with 'type'", config))
    kind = options.pop('type')
    if isinstance(kind, str):
        kind = nn.LayerNorm if kind == 'LN' else getattr(nn, kind, None)
    return kind, options


def _import_cnn(name: str, config: Mapping[str, Any]) -> Any:
    try:
        from mmcv import cnn
    except ImportError as error:
        allowed = 'a type of torch.nn, and with mmcv installed the types of its registry'
        raise ImportError(f'{refusal(name, allowed, config)} ({error})') from error
    return cnn
