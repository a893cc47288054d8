"""The checks of a backbone's arguments, which one table describes, and of its input."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..archs import Arch
from ..backends.functions.autocast import autocast_dtype
from . import ranges
from .ranges import (
    BACKEND,
    FLAG,
    INIT_CFG,
    PAIR,
    POSITIVE,
    POSITIVES,
    RATE,
    STRIP_TOKENS,
    TEXT,
    Range,
    choice,
    or_none,
    read,
)

RENAMED = {
    'attention_backend': "is called backend now: write backend='eager' for 'sdpa'; 'auto' and 'triton' are as before",
}


def refuse_renamed(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a constructor that says what to write in the place of an argument of another name."""

    @wraps(init)
    def check_names(self: Any, *args: Any, **given: Any) -> None:
        for name in RENAMED.keys() & given.keys():
            raise TypeError(f'{name} {RENAMED[name]}; got {name}={given[name]!r}')
        init(self, *args, **given)

    return check_names


def of_size(archs: Mapping[str, Arch]) -> dict[str, Range]:
    """The allowed values of the arguments that set width, depths and heads."""
    return dict(
        arch=or_none(choice(*archs)),
        embed_dims=or_none(POSITIVE),
        depths=or_none(POSITIVES),
        num_heads=or_none(POSITIVES),
    )


def of_backbone(size: Arch) -> dict[str, Range]:
    """The allowed values of all other arguments, for a backbone of this size."""
    channels, num_stages = size.embed_dims, len(size.depths)
    return dict(
        pretrain_img_size=PAIR,
        in_channels=POSITIVE,
        patch_size=PAIR,
        window_size=ranges.windows(num_stages),
        mlp_ratio=ranges.mlp_ratio(channels),
        strides=ranges.strides(num_stages),
        out_indices=ranges.stages(num_stages),
        qkv_bias=FLAG,
        qk_scale=or_none(ranges.number('a finite number of more than 0', lambda scale: scale > 0)),
        patch_norm=FLAG,
        drop_rate=RATE,
        attn_drop_rate=RATE,
        drop_path_rate=RATE,
        use_abs_pos_embed=FLAG,
        act_cfg=ranges.activation(channels),
        norm_cfg=ranges.norm(channels),
        with_cp=FLAG,
        pretrained=or_none(TEXT),
        convert_weights=FLAG,
        frozen_stages=ranges.integer(-1, num_stages),
        init_cfg=or_none(INIT_CFG),
        pretrained_window_sizes=ranges.pretrained_windows(num_stages),
        extra_norm_every_n_blocks=or_none(ranges.integer(0)),
        small_map=choice('pad', 'shrink'),
        mask_padding=FLAG,
        strip_tokens=or_none(STRIP_TOKENS),
        backend=BACKEND,
    )


def check(given: Mapping[str, Any], archs: Mapping[str, Arch]) -> dict[str, Any]:
    """Check the arguments of a backbone's constructor and convert them to what the pyramid and its blocks take.

    Args:
        given: arguments by name, as in a constructor's `locals()`; other names are ignored.
        archs: the published sizes.

    Returns:
        Values by name. `arch` is an `Arch` made from arch, embed_dims, depths and num_heads. `init_cfg` also stands
        for `pretrained`, its deprecated spelling. convert_weights is left out, since it has no effect.

    Raises:
        TypeError, ValueError: for the first argument that has a wrong type or is out of its range. The message names
            the argument.
    """
    size = _size(archs, **{name: read(name, given[name], inside) for name, inside in of_size(archs).items()})
    checked = {name: read(name, given[name], inside) for name, inside in of_backbone(size).items() if name in given}
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
    pretrained = checked.pop('pretrained', None)
    if pretrained and checked['init_cfg']:
        raise ValueError(
            f'pretrained and init_cfg exclude each other; got {pretrained=} and init_cfg={given["init_cfg"]!r}'
        )
    if pretrained:
        checked['init_cfg'] = dict(type='Pretrained', checkpoint=pretrained)
    checked.pop('convert_weights', None)
    return {**checked, 'arch': size}


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
                f'num_heads[{stage}] must divide the width of stage {stage}, embed_dims * {1 << stage} = {width}; '
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


def _dtype_of_weights(embedding: nn.Module) -> Optional[torch.dtype]:
    """The dtype of the patch embedding's weights; None where a hook or a wrapper such as FSDP may cast images or
    weights.
    """
    projection = getattr(embedding, 'projection', None)
    if type(projection) is not nn.Conv2d or embedding._forward_pre_hooks or projection._forward_pre_hooks:
        return None
    return projection.weight.dtype
