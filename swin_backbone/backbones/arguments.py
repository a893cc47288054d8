"""What a backbone's user may pass: each check names the argument, what it got and what it takes."""

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor

from ..archs import ARCHS, Arch
from ..ops.grid import Size


def resolve_arch(
    arch: Optional[str],
    embed_dims: Optional[int],
    depths: Optional[Sequence[int]],
    num_heads: Optional[Sequence[int]],
    archs: Mapping[str, Arch] = ARCHS,
) -> Arch:
    """Width, depths and heads: an explicit one, else the arch's, else Swin-T's."""
    if arch is not None and arch not in archs:
        raise ValueError(f'arch must be one of {sorted(archs)} or None, got {arch!r}')
    table = archs[arch or 'tiny']
    embed_dims = positive_int('embed_dims', table.embed_dims if embed_dims is None else embed_dims)
    depths = _positive_ints('depths', table.depths if depths is None else depths)
    num_heads = _positive_ints('num_heads', table.num_heads if num_heads is None else num_heads)
    if len(depths) != len(num_heads):
        raise ValueError(f'depths and num_heads must have one entry a stage each, got {depths=} and {num_heads=}')
    for stage, heads in enumerate(num_heads):
        if (embed_dims << stage) % heads:
            raise ValueError(
                f'num_heads[{stage}] must divide the width of stage {stage}, {embed_dims << stage}; got {heads}'
            )
    return Arch(embed_dims, depths, num_heads)


def merge_pretrained(pretrained: Optional[str], init_cfg: Optional[dict]) -> Optional[dict]:
    """The one init_cfg that `pretrained`, its deprecated spelling, and `init_cfg` amount to."""
    if pretrained is None:
        return init_cfg
    if not isinstance(pretrained, str):
        raise TypeError(f'pretrained must be a path or URL, or None, got {pretrained!r}')
    if init_cfg:
        raise ValueError(f'pretrained and init_cfg exclude each other, got {pretrained=} and {init_cfg=}')
    return {'type': 'Pretrained', 'checkpoint': pretrained}


def check_out_indices(out_indices: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """The stages to emit, in ascending order, as they come out."""
    indices = _ints('out_indices', out_indices)
    if not indices or len(set(indices)) < len(indices) or not set(indices) <= set(range(num_stages)):
        raise ValueError(f'out_indices must be different stages among 0..{num_stages - 1}, got {out_indices}')
    return tuple(sorted(indices))


def check_strides(strides: Sequence[int], patch_size: Union[int, Sequence[int]], num_stages: int) -> tuple[int, ...]:
    strides = _positive_ints('strides', strides)
    if len(strides) < num_stages:
        raise ValueError(f'strides must have an entry for each of the {num_stages} stages, got {strides}')
    if pair('patch_size', patch_size) != (strides[0], strides[0]):
        raise ValueError(
            f'patch_size must equal strides[0], patches do not overlap; got {patch_size=} and strides[0]={strides[0]}'
        )
    return strides


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ValueError(f'{name} must be one of {list(choices)}, got {value!r}')
    return value


def check_rate(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f'{name} must be a probability, at least 0 and less than 1, got {value!r}')
    return value


def check_mlp_ratio(mlp_ratio: float) -> float:
    if not mlp_ratio > 0:
        raise ValueError(f'mlp_ratio must be more than 0, got {mlp_ratio!r}')
    return mlp_ratio


def check_frozen_stages(frozen_stages: int, num_stages: int) -> int:
    if not isinstance(frozen_stages, int) or not -1 <= frozen_stages <= num_stages:
        raise ValueError(
            f'frozen_stages must be -1 (none), 0 (patch embedding) or up to {num_stages} stages, got {frozen_stages!r}'
        )
    return frozen_stages


def check_strip_tokens(strip_tokens: Union[int, str, None]) -> Union[int, str, None]:
    if strip_tokens is None or strip_tokens == 'auto':
        return strip_tokens
    return positive_int("strip_tokens, unless 'auto' or None,", strip_tokens)


def check_images(x_BCHW: Tensor, in_channels: int) -> None:
    """Refuse a batch of images that the patch embedding cannot take."""
    if not isinstance(x_BCHW, Tensor):
        raise TypeError(f'the input must be a Tensor (B, {in_channels}, H, W), got {type(x_BCHW).__name__}')
    shape = tuple(x_BCHW.shape)
    if len(shape) != 4:
        raise ValueError(f'the input must be 4-D (B, {in_channels}, H, W), got shape {shape}')
    if shape[1] != in_channels:
        raise ValueError(f'the input must have in_channels={in_channels} channels, got {shape[1]} in shape {shape}')
    if 0 in shape:
        raise ValueError(f'the input must hold at least one image of at least 1x1 pixels, got shape {shape}')
    if not torch.is_floating_point(x_BCHW):
        raise TypeError(
            f'the input must be floating point, normalised images, got {x_BCHW.dtype}; '
            "a model's data_preprocessor converts and normalises"
        )


def pair(name: str, value: Union[int, Sequence[int]]) -> Size:
    """An int for both (height, width), or two ints; a tuple of one counts as an int."""
    values = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if len(values) not in (1, 2) or isinstance(value, str):
        raise TypeError(f'{name} must be an int or a pair (height, width), got {value!r}')
    values = _positive_ints(name, values)
    return values[0], values[-1]


def window_sizes(window_size: Union[int, Sequence], num_stages: int) -> tuple[Size, ...]:
    """The (height, width) of each stage's windows: from one for all, or from one a stage, each an int or a pair."""
    if isinstance(window_size, int) or _is_pair_of_ints(window_size):
        return (pair('window_size', window_size),) * num_stages
    if not isinstance(window_size, Sequence) or isinstance(window_size, str):
        raise TypeError(
            f'window_size must be an int, a pair (height, width), or one of these a stage, got {window_size!r}'
        )
    if len(window_size) != num_stages:
        raise ValueError(
            f'window_size must be an int, a pair (height, width), or one of these for each of the {num_stages} '
            f'stages, got {window_size!r}'
        )
    return tuple(pair(f'window_size[{stage}]', size) for stage, size in enumerate(window_size))


def pretrained_window_sizes(sizes: Sequence, num_stages: int) -> tuple[Optional[Size], ...]:
    """The (height, width) of the windows each stage was trained with; None for 0, which says: those it has."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise TypeError(f'pretrained_window_sizes must be a sequence with an entry a stage, got {sizes!r}')
    if len(sizes) != num_stages:
        raise ValueError(f'pretrained_window_sizes must have an entry for each of {num_stages} stages, got {sizes!r}')
    return tuple(
        None if size == 0 else pair(f'pretrained_window_sizes[{stage}]', size) for stage, size in enumerate(sizes)
    )


def check_extra_norm(every_n_blocks: int) -> int:
    if isinstance(every_n_blocks, bool) or not isinstance(every_n_blocks, int):
        raise TypeError(f'extra_norm_every_n_blocks must be an int, got {every_n_blocks!r}')
    if every_n_blocks < 0:
        raise ValueError(f'extra_norm_every_n_blocks must be 0 (none) or more, got {every_n_blocks}')
    return every_n_blocks


def positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'{name} must be an int, got {value!r}')
    if value < 1:
        raise ValueError(f'{name} must be at least 1, got {value}')
    return value


def _positive_ints(name: str, values: Sequence[int]) -> tuple[int, ...]:
    return tuple(positive_int(f'each of {name}', value) for value in _ints(name, values))


def _ints(name: str, values: Sequence[int]) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, int) for v in values):
        raise TypeError(f'{name} must be a sequence of ints, got {values!r}')
    return tuple(values)


def _is_pair_of_ints(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) in (1, 2) and all(isinstance(entry, int) for entry in value)
