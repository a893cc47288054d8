"""Which backend computes a stage: decided here alone, once a stage and forward."""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Union

import torch
from torch import Tensor, nn

from ..compat import constant_when_compiled
from ..windows.grid import Size
from .eager import Eager
from .functions.autocast import autocast_dtype
from .graph import Graph
from .native import Native
from .protocol import Backend, BlockSettings, Plan, Request, StripTokens, recorder_of
from .reference import Reference
from .strips import strip_tokens_of
from .triton import Triton
from .triton.trial import why_unfit

AUTO = 'auto'
BACKENDS: dict[str, Backend] = {b.name: b for b in (Native(), Eager(), Graph(), Triton(), Reference())}


class StageOptions(NamedTuple):
    """What is known of a stage before it gets an input."""

    backend: Union[str, Backend]  # 'auto', a name of `BACKENDS`, or one itself
    strip_tokens: StripTokens
    with_cp: bool
    kind: str  # of the blocks: 'v1', 'v2' or 'mlp'
    channels: int
    hidden_channels: int  # of the MLP
    head_dim: int
    window_size: Size


def plan_stage(options: StageOptions, x: Tensor, blocks: Sequence[BlockSettings]) -> Plan:
    """How a stage computes an input of this device, dtype and mode.

    Args:
        x: the stage's map, or the images from which it will come.
        blocks: the settings of the stage's blocks in their mode now; not of those whose layers a user has changed.

    Raises:
        ValueError: if the backend that `options` names cannot compute the stage. The message says why.
    """
    request = request_of(options, x, blocks)
    backend = choose(options.backend, request)
    with_cp = options.with_cp and request.recorded != 'torch.func'  # which torch's checkpoint does not support
    return Plan(backend, autocast_dtype(x.device.type), strip_tokens_of(request), with_cp)


def request_of(options: StageOptions, x: Tensor, blocks: Sequence[BlockSettings]) -> Request:
    """What a stage asks of a backend for an input of this device, dtype and mode; see `plan_stage`."""
    return Request(
        kind=options.kind,
        device=x.device,
        dtype=autocast_dtype(x.device.type) or x.dtype,
        weight_dtypes=frozenset(block.weight_dtype for block in blocks),
        recorded=recorder_of(x),
        channels=options.channels,
        hidden_channels=options.hidden_channels,
        head_dim=options.head_dim,
        window_size=options.window_size,
        attn_drop=max([0.0, *[block.attn_drop for block in blocks]]),
        has_dropout=any(block.has_dropout for block in blocks),
        exact_gelu=all(is_exact_gelu(block.activation) for block in blocks),
        strip_tokens=options.strip_tokens,
        has_all_heads=all(block.attention_channels in (None, options.channels) for block in blocks),
    )


def choose(backend: Union[str, Backend], request: Request) -> Backend:
    """The backend for a stage.

    Raises:
        ValueError: if `backend` is not 'auto' and cannot compute the stage. The message says why.
    """
    if isinstance(backend, str) and backend == AUTO:
        return _fastest(request)
    chosen = BACKENDS[backend] if isinstance(backend, str) else backend
    reason = chosen.why_not(request)
    if reason is not None:
        raise ValueError(f'backend={chosen.name!r} cannot compute this: {reason}')
    return chosen


def _fastest(request: Request) -> Backend:
    """Triton on CUDA, unless in float32 without TF32, which cannot use tensor cores; compiled operators on a CPU."""
    if request.device.type == 'cuda' and (request.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32):
        triton = BACKENDS['triton']
        reason = triton.why_not(request)
        if reason is None:
            return triton
        if why_unfit(request) is None:  # it was to be expected here
            _warn_once(f"backend='auto' computes without the Triton kernels: {reason}")
    if request.recorded is not None:
        return BACKENDS['graph']
    native = BACKENDS['native']
    return native if native.why_not(request) is None else BACKENDS['eager']


def is_exact_gelu(activation: object) -> bool:
    """Whether a layer is GELU by the error function, which kernels have."""
    return type(activation) is nn.GELU and activation.approximate == 'none'


@constant_when_compiled
def _warn_once(message: str) -> None:
    _warned(message)


@lru_cache(maxsize=256)
def _warned(message: str) -> None:
    warnings.warn(message, stacklevel=4)
