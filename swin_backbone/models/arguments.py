"""The kinds of arguments of backbones: in a constructor's signature each says its type and the values that it takes.

A kind is the argument's type, annotated with a `Range`, or with a function that makes one of the backbone's size.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from types import SimpleNamespace
from typing import Annotated, Any, Optional, Union

import torch
from torch import Tensor, nn

from ..archs import Arch
from ..backends.choose import autocast_dtype
from . import ranges
from .ranges import Range, or_none, read

Pair = Annotated[Union[int, Sequence[int]], ranges.PAIR]
Positive = Annotated[int, ranges.POSITIVE]
Width = Annotated[Optional[int], or_none(ranges.POSITIVE)]
OneAStage = Annotated[Optional[Sequence[int]], or_none(ranges.POSITIVES)]
Windows = Annotated[Union[int, Sequence[Union[int, Sequence[int]]]], lambda size: ranges.windows(len(size.depths))]
PretrainedWindows = Annotated[
    Optional[Sequence[Union[int, Sequence[int]]]], lambda size: ranges.pretrained_windows(len(size.depths))
]
MLPRatio = Annotated[float, lambda size: ranges.mlp_ratio(size.embed_dims)]
Strides = Annotated[Sequence[int], lambda size: ranges.strides(len(size.depths))]
Stages = Annotated[Sequence[int], lambda size: ranges.stages(len(size.depths))]
FrozenStages = Annotated[int, lambda size: ranges.integer(-1, len(size.depths))]
Flag = Annotated[bool, ranges.FLAG]
Rate = Annotated[float, ranges.RATE]
Scale = Annotated[Optional[float], or_none(ranges.number('a finite number of more than 0', lambda scale: scale > 0))]
Every = Annotated[Optional[int], or_none(ranges.integer(0))]
Activation = Annotated[dict[str, Any], lambda size: ranges.activation(size.embed_dims)]
Norm = Annotated[dict[str, Any], lambda size: ranges.norm(size.embed_dims)]
Checkpoint = Annotated[Optional[str], or_none(ranges.TEXT)]
InitCfg = Annotated[Union[dict[str, Any], list[dict[str, Any]], None], or_none(ranges.INIT_CFG)]
SmallMap = Annotated[str, ranges.choice('pad', 'shrink')]
BackendName = Annotated[str, ranges.BACKEND]

SIZE = ('arch', 'embed_dims', 'depths', 'num_heads')  # make the size, which the ranges of others depend on
RENAMED = {
    'attention_backend': "is called backend now: write backend='torch' for 'sdpa'; 'auto' and 'triton' are as before",
    'strip_tokens': 'is gone, since whole maps take less time: leave it out; with_cp=True takes the least memory',
}


def refuse_renamed(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a constructor that says what to write in the place of an argument of another name."""

    @wraps(init)
    def check_names(self: object, *args: Any, **given: Any) -> None:
        for name in RENAMED.keys() & given.keys():
            raise TypeError(f'{name} {RENAMED[name]}; got {name}={given[name]!r}')
        init(self, *args, **given)

    return check_names


@lru_cache(maxsize=8)
def declared(init: Callable[..., None]) -> dict[str, Any]:
    """What a constructor's signature says that its arguments take, by name."""
    # Not `get_type_hints`, which until Python 3.10 wraps the type of what is None by default.
    return {name: kind.__metadata__[0] for name, kind in init.__annotations__.items() if hasattr(kind, '__metadata__')}


def check(init: Callable[..., None], given: Mapping[str, Any], archs: Mapping[str, Arch]) -> SimpleNamespace:
    """Check the arguments of a backbone's constructor and convert them to what the pyramid and its blocks take.

    Args:
        init: the constructor, whose signature says what is allowed.
        given: arguments by name, as in a constructor's `locals()`; other names are ignored.
        archs: the published sizes.

    Returns:
        Values by name. `size` is made from arch, embed_dims, depths and num_heads. `init_cfg` also stands for
        `pretrained`, its deprecated spelling.

    Raises:
        TypeError, ValueError: for the first argument that has a wrong type or is out of its range. The message names
            the argument.
    """
    if isinstance(given['pretrain_img_size'], str):  # of who names a size first
        raise TypeError(
            f'pretrain_img_size must be {ranges.PAIR.words}; got {given["pretrain_img_size"]!r}. '
            f"A published size is named by arch='tiny', of {', '.join(archs)}"
        )
    takes = declared(init)
    size = _size(archs, **{name: read(name, given[name], takes[name]) for name in SIZE})
    checked = {
        name: read(name, given[name], inside if isinstance(inside, Range) else inside(size))
        for name, inside in takes.items()
        if name not in SIZE
    }
    patch = checked['strides'][0]
    if checked['patch_size'] != (patch, patch):
        raise ValueError(
            f'patch_size must equal strides[0]={patch}, patches do not overlap; got {given["patch_size"]!r}'
        )
    if checked['use_abs_pos_embed'] and min(checked['pretrain_img_size']) < patch:
        raise ValueError(
            f'pretrain_img_size must be at least a patch of {patch}, if use_abs_pos_embed; '
            f'got {given["pretrain_img_size"]!r}'
        )
    pretrained = checked.get('pretrained')
    if pretrained and checked['init_cfg']:
        raise ValueError(
            f'pretrained and init_cfg exclude each other; got {pretrained=} and init_cfg={given["init_cfg"]!r}'
        )
    if pretrained:
        checked['init_cfg'] = dict(type='Pretrained', checkpoint=pretrained)
    return SimpleNamespace(**checked, size=size)


def _size(
    archs: Mapping[str, Arch],
    arch: Optional[str],
    embed_dims: Optional[int],
    depths: Optional[tuple[int, ...]],
    num_heads: Optional[tuple[int, ...]],
) -> Arch:
    """Width, depths and heads: the explicit argument if there is one, else that of the arch, else that of 'tiny'."""
    published = archs[arch or 'tiny']
    size = Arch(embed_dims or published.embed_dims, depths or published.depths, num_heads or published.num_heads)
    if len(size.depths) != len(size.num_heads):
        raise ValueError(
            'depths and num_heads must have one entry a stage each; '
            f'got depths={size.depths} and num_heads={size.num_heads}'
        )
    for stage, heads in enumerate(size.num_heads):
        width = size.embed_dims << stage
        if width % heads:
            raise ValueError(
                f'num_heads[{stage}] must divide the width of stage {stage + 1}, embed_dims * {1 << stage} = {width}; '
                f'got {heads}'
            )
    return size


def check_images(x_BCHW: Tensor, in_channels: int, embedding: nn.Module) -> None:
    """Refuse a batch of images that the patch embedding cannot take.

    Raises:
        TypeError: if it is not a floating-point tensor, or if, outside autocast, its dtype is not that of the weights.
        ValueError: if its shape is not (B, in_channels, H, W), or if it is empty.
    """
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
    dtype = _dtype_of_weights(embedding)
    if dtype not in (None, x_BCHW.dtype) and autocast_dtype(x_BCHW.device.type) is None:
        raise TypeError(
            f"the input must be {dtype}, as the model's weights, or torch.autocast be on; got {x_BCHW.dtype}"
        )


def check_out(out: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse what maps of these shapes cannot be written to.

    Raises:
        TypeError: if it is not floating-point tensors.
        ValueError: if they have other shapes, or gradients are recorded.
    """
    if torch.is_grad_enabled():
        raise ValueError('out takes maps without gradients: call the backbone under torch.inference_mode()')
    if not isinstance(out, Sequence):
        raise TypeError(f'out takes a sequence of tensors, got {type(out).__name__}')
    for tensor in out:
        if not isinstance(tensor, Tensor) or not torch.is_floating_point(tensor):
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f'out takes floating-point tensors, got {got}')
    if [tuple(tensor.shape) for tensor in out] != list(shapes):
        raise ValueError(f'out takes tensors of {list(shapes)}, got {[tuple(tensor.shape) for tensor in out]}')


def _dtype_of_weights(embedding: nn.Module) -> Optional[torch.dtype]:
    """The dtype of the patch embedding's weights; None where a hook or a wrapper such as FSDP may cast images or
    weights.
    """
    projection = getattr(embedding, 'projection', None)
    if type(projection) is not nn.Conv2d or embedding._forward_pre_hooks or projection._forward_pre_hooks:
        return None
    return projection.weight.dtype
