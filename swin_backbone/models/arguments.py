"""Checks of the arguments of backbones."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any, Optional, Union

from ..archs import Arch
from ..backends.choose import BACKENDS, REPLACED
from ..checks import check_bool, check_choice, check_int, check_number, check_sequence, check_size, is_int, refusal
from ..windows.grid import Size
from .layer_configs import check_activation, check_init_cfg, check_norm

Pair = Union[int, Sequence[int]]  # (height, width), or a number for height and width
Windows = Union[int, Sequence[Pair]]  # a window for all stages, or a list of windows
InitCfg = Union[dict[str, Any], list[dict[str, Any]], None]

DEFAULT_STRIDES = (4, 2, 2, 2)
FLAGS = ('qkv_bias', 'patch_norm', 'use_abs_pos_embed', 'with_cp', 'convert_weights', 'mask_padding')
RATES = ('drop_rate', 'attn_drop_rate', 'drop_path_rate')
RENAMED = {
    'attention_backend': "is called backend now: write backend='torch' for 'sdpa'; 'auto' and 'triton' are as before",
    'strip_tokens': 'is gone, since whole maps take less time: leave it out; with_cp=True takes the least memory',
}


def refuse_renamed(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a constructor: an argument's old name raises an error with the new name."""

    @wraps(init)
    def check_names(self: object, *args: Any, **given: Any) -> None:
        for name in RENAMED.keys() & given.keys():
            raise TypeError(f'{name} {RENAMED[name]}; got {name}={given[name]!r}')
        init(self, *args, **given)

    return check_names


def check(given: Mapping[str, Any], archs: Mapping[str, Arch]) -> SimpleNamespace:
    """Check the arguments of a backbone's constructor and convert the arguments to the form of `SwinPyramid`.

    Args:
        given: arguments by name, for example a constructor's `locals()`. Unknown names are ignored.
        archs: the published sizes.

    Returns:
        Values by name. `size` replaces arch, embed_dims, depths and num_heads. `init_cfg` also holds the checkpoint
        of `pretrained`.

    Raises:
        TypeError, ValueError: for an argument of a wrong type or out of range. The message names the argument.
    """
    if isinstance(given['pretrain_img_size'], str):  # a frequent mistake: SwinBackbone('swin-t')
        message = refusal('pretrain_img_size', 'a whole number or a pair (height, width)', given['pretrain_img_size'])
        raise TypeError(f"{message}. A published size is named by arch='tiny', of {', '.join(archs)}")
    size = _check_arch(archs, given['arch'], given['embed_dims'], given['depths'], given['num_heads'])
    num_stages = len(size.depths)
    checked: dict[str, Any] = dict(size=size)
    checked.update((name, check_bool(name, given[name])) for name in FLAGS if name in given)
    checked.update((name, check_number(name, given[name], least=0, below=1)) for name in RATES if name in given)
    checked.update(
        in_channels=check_int('in_channels', given['in_channels'], least=1),
        window_size=_check_windows(given['window_size'], num_stages),
        mlp_ratio=check_number('mlp_ratio', given['mlp_ratio'], least=1 / size.embed_dims),
        out_indices=_check_stages(given['out_indices'], num_stages),
        frozen_stages=check_int('frozen_stages', given['frozen_stages'], -1, num_stages),
        act_cfg=check_activation('act_cfg', given['act_cfg'], size.embed_dims),
        norm_cfg=check_norm('norm_cfg', given['norm_cfg'], size.embed_dims),
        init_cfg=check_init_cfg('init_cfg', given['init_cfg']),
        small_map=check_choice('small_map', given['small_map'], ['pad', 'shrink']),
        backend=check_backend(given['backend']),
        qk_scale=_or_none(check_number, 'qk_scale', given.get('qk_scale'), above=0),
        extra_norm_every_n_blocks=_or_none(
            check_int, 'extra_norm_every_n_blocks', given.get('extra_norm_every_n_blocks'), least=0
        ),
        pretrained_window_sizes=_check_pretrained_windows(given.get('pretrained_window_sizes'), num_stages),
        **_check_patches(given, num_stages),
    )
    if given.get('pretrained') is not None:
        checked['init_cfg'] = _checkpoint_of(given['pretrained'], given['init_cfg'])
    return SimpleNamespace(**checked)


def check_backend(value: Any) -> str:
    if isinstance(value, str) and value in REPLACED:
        raise ValueError(f'{refusal("backend", f"one of {list(BACKENDS)}", value)}: {REPLACED[value]}')
    return str(check_choice('backend', value, BACKENDS))


def _or_none(check: Callable[..., Any], name: str, value: object, **limits: float) -> Any:
    return None if value is None else check(name, value, **limits)


def _check_arch(archs: Mapping[str, Arch], arch: object, embed_dims: object, depths: object, num_heads: object) -> Arch:
    """Return width, depths and heads. Defaults are the values of the arch, or of 'tiny'."""
    published = archs['tiny' if arch is None else str(check_choice('arch', arch, archs))]
    size = Arch(
        _or_none(check_int, 'embed_dims', embed_dims, least=1) or published.embed_dims,
        _or_none(_check_ints, 'depths', depths) or published.depths,
        _or_none(_check_ints, 'num_heads', num_heads) or published.num_heads,
    )
    if len(size.depths) != len(size.num_heads):
        raise ValueError(
            f'depths and num_heads take one entry for each stage, got depths={size.depths} and '
            f'num_heads={size.num_heads}'
        )
    for stage, heads in enumerate(size.num_heads):
        width = size.embed_dims << stage
        if width % heads:
            takes = f'a divisor of the width of stage {stage + 1}, embed_dims * {1 << stage} = {width}'
            raise ValueError(refusal(f'num_heads[{stage}]', takes, heads))
    return size


def _check_ints(name: str, value: object, length: Optional[int] = None) -> tuple[int, ...]:
    takes = f'a list of {length or ""} whole numbers of at least 1, one for each stage'.replace('  ', ' ')
    return tuple(check_int(name, entry, least=1) for entry in check_sequence(name, value, takes, length))


def _check_patches(given: Mapping[str, Any], num_stages: int) -> dict[str, Any]:
    """Check strides, size of patches and size of pre-training images. The default strides serve fewer stages too."""
    strides = _check_ints('strides', given['strides'])
    strides = _check_ints('strides', strides[:num_stages] if strides == DEFAULT_STRIDES else strides, num_stages)
    patch = strides[0]
    patch_size = check_size('patch_size', given['patch_size'])
    if patch_size != (patch, patch):
        takes = f'strides[0] = {patch}, because patches do not overlap'
        raise ValueError(refusal('patch_size', takes, given['patch_size']))
    pretrain_img_size = check_size('pretrain_img_size', given['pretrain_img_size'])
    if given['use_abs_pos_embed'] and min(pretrain_img_size) < patch:
        takes = f'at least a patch of {patch} pixels with use_abs_pos_embed'
        raise ValueError(refusal('pretrain_img_size', takes, given['pretrain_img_size']))
    return dict(strides=strides, patch_size=patch_size, pretrain_img_size=pretrain_img_size)


def _check_windows(value: Any, num_stages: int) -> tuple[Size, ...]:
    """Check a window for all stages, or a list of windows. Two ints are (height, width), even with two stages."""
    takes = f'a whole number of at least 1, a pair (height, width), or a list of {num_stages}, one for each stage'
    entries = (value,) if is_int(value) else check_sequence('window_size', value, takes)
    if len(entries) <= 2 and all(map(is_int, entries)):
        return (check_size('window_size', value),) * num_stages
    entries = check_sequence('window_size', value, takes, num_stages)
    return tuple(check_size(f'window_size[{stage}]', entry) for stage, entry in enumerate(entries))


def _check_pretrained_windows(value: object, num_stages: int) -> tuple[Optional[Size], ...]:
    """Check the windows of the stages in pre-training. 0 becomes None: the stage's window."""
    if value is None:
        return (None,) * num_stages
    name, takes = 'pretrained_window_sizes', f'a list of {num_stages} windows, one for each stage, or None'
    entries = check_sequence(name, value, takes, num_stages)
    return tuple(
        None if is_int(entry) and entry == 0 else check_size(f'{name}[{stage}]', entry)
        for stage, entry in enumerate(entries)
    )


def _check_stages(value: object, num_stages: int) -> tuple[int, ...]:
    """Check the stages of the outputs, and return the stages in ascending order."""
    takes = f'a list of different stages from 0 to {num_stages - 1}'
    stages = tuple(
        check_int('out_indices', stage, 0, num_stages - 1) for stage in check_sequence('out_indices', value, takes)
    )
    if len(set(stages)) < len(stages):
        raise ValueError(refusal('out_indices', takes, value))
    return tuple(sorted(stages))


def _checkpoint_of(pretrained: object, init_cfg: object) -> dict[str, Any]:
    """Return the init_cfg of `pretrained`, a deprecated argument of mmdet's Swin."""
    if not isinstance(pretrained, str) or not pretrained:
        kind = TypeError if not isinstance(pretrained, str) else ValueError
        raise kind(refusal('pretrained', 'a path or URL', pretrained))
    if init_cfg:
        raise ValueError(f'pretrained and init_cfg exclude each other, got {pretrained=} and {init_cfg=}')
    return dict(type='Pretrained', checkpoint=pretrained)
