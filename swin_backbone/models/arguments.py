"""Arguments of backbones: the form of `SwinPyramid`, and errors for values with silent consequences."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any, Optional, Union

from ..archs import Arch
from ..checks import check_choice, check_int, check_sequence, check_size, is_int, refusal
from ..kernels.choose import BACKENDS, REPLACED
from ..windows.grid import Size

Pair = Union[int, Sequence[int]]  # (height, width), or a number for height and width
Windows = Union[int, Sequence[Pair]]  # a window for all stages, or a list of windows
InitCfg = Union[dict[str, Any], list[dict[str, Any]], None]

DEFAULT_STRIDES = (4, 2, 2, 2)
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
        given: arguments by name, for example a constructor's `locals()`.
        archs: the published sizes.

    Returns:
        Values by name. `size` has width, depths and heads. `init_cfg` also holds the checkpoint of `pretrained`.
        Windows, strides and sizes are tuples.

    Raises:
        TypeError, ValueError: for a value that would silently build a different model. The message names the argument.
    """
    settings = SimpleNamespace(**{name: value for name, value in given.items() if name not in ('self', '__class__')})
    settings.size = size = _check_arch(archs, given['arch'], given['embed_dims'], given['depths'], given['num_heads'])
    num_stages = len(size.depths)
    settings.window_size = _check_windows(given['window_size'], num_stages)
    settings.out_indices = _check_stages(given['out_indices'], num_stages)
    settings.strides, settings.patch_size = _check_patches(given['strides'], given['patch_size'], num_stages)
    if isinstance(given['pretrain_img_size'], str):  # a frequent mistake: SwinBackbone('swin-t')
        allowed = f"a size; a published size is a keyword, arch='tiny', of {list(archs)}"
        raise TypeError(refusal('pretrain_img_size', allowed, given['pretrain_img_size']))
    settings.pretrain_img_size = check_size('pretrain_img_size', given['pretrain_img_size'])
    check_choice('small_map', given['small_map'], ['pad', 'shrink'])
    check_backend(given['backend'])
    if given.get('pretrained'):
        if given['init_cfg']:
            raise ValueError(f'pretrained and init_cfg exclude each other, got {given["pretrained"]!r}')
        settings.init_cfg = dict(type='Pretrained', checkpoint=given['pretrained'])
    return settings


def check_backend(value: Any) -> str:
    if isinstance(value, str) and value in REPLACED:
        raise ValueError(f'{refusal("backend", f"one of {list(BACKENDS)}", value)}: {REPLACED[value]}')
    return str(check_choice('backend', value, BACKENDS))


def _check_arch(archs: Mapping[str, Arch], arch: Optional[str], embed_dims: Any, depths: Any, num_heads: Any) -> Arch:
    """Return width, depths and heads. Defaults are the values of the arch, or of 'tiny'."""
    published = archs[str(check_choice('arch', 'tiny' if arch is None else arch, archs))]
    size = Arch(
        published.embed_dims if embed_dims is None else check_int('embed_dims', embed_dims, least=1),
        published.depths if depths is None else _check_ints('depths', depths),
        published.num_heads if num_heads is None else _check_ints('num_heads', num_heads),
    )
    if len(size.depths) != len(size.num_heads):
        raise ValueError(
            f'depths and num_heads take one entry for each stage, got depths={size.depths} and '
            f'num_heads={size.num_heads}'
        )
    for stage, heads in enumerate(size.num_heads):
        width = size.embed_dims << stage
        if width % heads:
            allowed = f'a divisor of the width of stage {stage + 1}, embed_dims * {1 << stage} = {width}'
            raise ValueError(refusal(f'num_heads[{stage}]', allowed, heads))
    return size


def _check_ints(name: str, value: object, length: Optional[int] = None) -> tuple[int, ...]:
    allowed = f'a list of {length or ""} whole numbers of at least 1, one for each stage'.replace('  ', ' ')
    return tuple(check_int(name, entry, least=1) for entry in check_sequence(name, value, allowed, length))


def _check_patches(strides: object, patch_size: object, num_stages: int) -> tuple[tuple[int, ...], Size]:
    """Check strides and the size of patches. The default strides serve fewer stages too."""
    numbers = _check_ints('strides', strides)
    numbers = _check_ints('strides', numbers[:num_stages] if numbers == DEFAULT_STRIDES else numbers, num_stages)
    patch = numbers[0]
    if check_size('patch_size', patch_size) != (patch, patch):
        raise ValueError(refusal('patch_size', f'strides[0] = {patch}, because patches do not overlap', patch_size))
    return numbers, (patch, patch)


def _check_windows(value: Any, num_stages: int) -> tuple[Size, ...]:
    """Check a window for all stages, or a list of windows. Two ints are (height, width), even with two stages."""
    allowed = f'a whole number of at least 1, a pair (height, width), or a list of {num_stages}, one for each stage'
    entries = (value,) if is_int(value) else check_sequence('window_size', value, allowed)
    if len(entries) <= 2 and all(map(is_int, entries)):
        return (check_size('window_size', value),) * num_stages
    entries = check_sequence('window_size', value, allowed, num_stages)
    return tuple(check_size(f'window_size[{stage}]', entry) for stage, entry in enumerate(entries))


def check_pretrained_windows(value: object, num_stages: int) -> tuple[Optional[Size], ...]:
    """Check the windows of the stages in pre-training. None and 0 become None: the stage's window."""
    name, allowed = 'pretrained_window_sizes', f'a list of {num_stages} windows, one for each stage, or None'
    entries = check_sequence(name, (0,) * num_stages if value is None else value, allowed, num_stages)
    return tuple(None if entry == 0 else check_size(f'{name}[{stage}]', entry) for stage, entry in enumerate(entries))


def _check_stages(value: object, num_stages: int) -> tuple[int, ...]:
    """Check the stages of the outputs, and return the stages in ascending order."""
    allowed = f'a list of different stages from 0 to {num_stages - 1}'
    stages = check_sequence('out_indices', value, allowed)
    if len(set(stages)) < len(stages) or not set(stages) <= set(range(num_stages)):
        raise ValueError(refusal('out_indices', allowed, value))
    return tuple(sorted(stages))
