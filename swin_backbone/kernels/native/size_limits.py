"""The sizes that csrc/swin.h allows, in one table. A row is (description, value, allowed values).

The table tells before a call, and in a graph without memory, what the library will refuse: the library's own errors
come too late. A test compares the table with these errors. The memory of a process is no limit here.

Letters: B maps, H W their sides, C channels, D hidden channels, h heads, N outputs of a linear layer, K its inputs.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Optional

import torch

from ...replace import Reason

THREADS = range(1, 1025)
MAX_TERMS = 2**16  # of a sum in eight bits
NUMBERS = range(2**44 + 1)  # of an array, in four bytes each
COUNT = range(2**31)  # of maps, tokens or numbers of a weight
SIZE = range(1, 2**20 + 1)  # a side of a map, channels
WINDOW = range(1, 17)  # places along a side
HEAD_CHANNELS = range(8, 65, 8)
BINS = range(1, 4097)

Row = tuple[str, int, range]


def _maps(B: int, H: int, W: int, C: int) -> list[Row]:
    return [
        ('maps', B, COUNT),
        ('rows of a map', H, SIZE),
        ('columns of a map', W, SIZE),
        ('channels', C, SIZE),
        ('tokens', B * H * W, COUNT),
        ('numbers of all maps', B * H * W * C, NUMBERS),
    ]


def _linear(dtype: torch.dtype, N: int, K: int) -> list[Row]:
    terms = range(1, MAX_TERMS + 1) if dtype is torch.int8 else COUNT
    return [('inputs of a linear layer in this precision', K, terms), ('numbers of a weight', N * K, COUNT)]


def _block(
    dtype: torch.dtype, B: int, H: int, W: int, C: int, D: int, h: int, Wh: int, Ww: int, down: int, right: int
) -> list[Row]:
    return [
        *_maps(B, H, W, C),
        ('channels of a head', C // h if h > 0 and C % h == 0 else 0, HEAD_CHANNELS),
        ('hidden channels', D, range(8, SIZE.stop, 8)),
        ('rows of a window', Wh, WINDOW),
        ('columns of a window', Ww, WINDOW),
        ('rows of a shift', down, range(Wh)),
        ('columns of a shift', right, range(Ww)),
        *_linear(dtype, 3 * C, C),
        *_linear(dtype, C, D),
    ]


def _embed(
    dtype: torch.dtype, B: int, C: int, H: int, W: int, patch_H: int, patch_W: int, N: int, has_gradients: bool
) -> list[Row]:
    K, sides = C * patch_H * patch_W, (patch_H, patch_W)
    if not all(side in SIZE for side in sides):
        return [('pixels along a patch', side, SIZE) for side in sides]
    tokens = B * -(-H // patch_H) * -(-W // patch_W)
    return [
        *_maps(B, H, W, C)[:4],
        ('numbers of a patch', K, SIZE),
        ('tokens', tokens, COUNT),
        *_tokens(dtype, tokens, N, K, has_gradients),
    ]


def _merge(dtype: torch.dtype, B: int, H: int, W: int, C: int, N: int, has_gradients: bool) -> list[Row]:
    tokens = B * ((H + 1) // 2) * ((W + 1) // 2)
    return [*_maps(B, H, W, C), *_tokens(dtype, tokens, N, 4 * C, has_gradients)]


def _tokens(dtype: torch.dtype, tokens: int, N: int, K: int, has_gradients: bool) -> list[Row]:
    """Return the rows of tokens with N channels. With gradients, the channels are even."""
    step = 2 if has_gradients else 1
    return [
        ('channels of a token' + ' in training' * has_gradients, N, range(step, SIZE.stop, step)),
        ('numbers of all tokens', tokens * N, NUMBERS),
        *_linear(dtype, N, K),
    ]


def _output_norm(B: int, area: int, C: int) -> list[Row]:
    return [
        ('maps', B, COUNT),
        ('tokens of a map', area, COUNT[1:]),
        ('channels', C, SIZE),
        ('tokens', B * area, COUNT),
        ('numbers of all maps', B * area * C, NUMBERS),
    ]


def _convolution(tile: int, B: int, H: int, W: int, C: int, N: int) -> list[Row]:
    return [*_maps(B, H, W, C), *_maps(B, H, W, N), ('numbers of a packed weight', N * C * (tile + 2) ** 2, COUNT)]


def _roi_align(B: int, C: int, H: int, W: int, regions: int, down: int, across: int, samples: int) -> list[Row]:
    return [
        *_maps(B, H, W, max(C, 1))[:4],
        ('regions', regions, COUNT),
        ('bins down', down, BINS),
        ('bins across', across, BINS),
        ('samples of a bin', samples, range(1025)),
        ('numbers of all bins', regions * C * down * across, NUMBERS),
    ]


def _deformable(B: int, queries: int, tokens: int, h: int, channels: int, levels: int, points: int) -> list[Row]:
    return [
        ('heads', h, BINS),
        ('channels of a head', channels, BINS),
        ('maps of an image', levels, BINS),
        ('points of a map', points, BINS),
        ('queries', B * queries, COUNT),
        ('tokens', B * tokens, COUNT),
        ('numbers of all tokens', B * tokens * h * channels, NUMBERS),
        ('numbers of all points', 2 * B * queries * h * levels * points, NUMBERS),
        ('numbers of all queries', B * queries * h * channels, NUMBERS),
    ]


def _nms(boxes: int) -> list[Row]:
    return [('boxes', boxes, COUNT)]


LIMITS: dict[str, Callable[..., Iterable[Row]]] = {
    'block': _block,
    'embed': _embed,
    'merge': _merge,
    'output_norm': _output_norm,
    'convolution': _convolution,
    'roi_align': _roi_align,
    'deformable': _deformable,
    'nms': _nms,
}


@lru_cache(maxsize=1024)
def find_reason_against_sizes(function: str, threads: int, *sizes: int) -> Optional[Reason]:
    """Return which size the library does not take; None: it takes all.

    Args:
        function: a name of `LIMITS`.
        threads: of the call.
        sizes: the arguments of `LIMITS[function]`; of layers with matrix products, the dtype is the first.
    """
    for name, number, allowed in (('threads', threads, THREADS), *LIMITS[function](*sizes)):
        if number not in allowed:
            steps = f', {allowed[1]} ... {allowed[-1]}' if allowed.step > 1 else f' to {allowed[-1]}' if allowed else ''
            first = allowed[0] if allowed else 'none'
            return f'The compiled library takes {first}{steps} {name}, not {number}.'
    return None
