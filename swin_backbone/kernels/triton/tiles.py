"""Programs and tiles of attention over the windows of maps.

Layout: T tokens, C channels, h heads, N places of a window.
"""

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...compat import allows_tf32
from ...sizes import Size

PROGRAMS_OF_A_CPU = 8  # the interpreter runs programs in turn
PROGRAMS_OF_A_MULTIPROCESSOR = 4  # of 4 warps; compiled for sm_80 to sm_120, registers allow 2 to 4. Not tuned on a GPU
INT32_OFFSETS = 2**31
ONE_TILE = 64  # the most places of a window in a single tile


class Variant(NamedTuple):
    """What kernels are compiled for. Sizes of maps are arguments at run time.

    Attributes:
        is_wide: whether offsets are int64.
        tf32: whether float32 is multiplied in TF32.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    window_size: Size
    shift: Size
    mask_padding: bool
    is_wide: bool
    tf32: bool


class Tiles:
    """The sizes of all launches.

    Args: see `attend_in_windows`.
        programs: for the windows of a head; 0: enough to keep the device busy.
        is_wide: whether to compute offsets in int64 for small maps too.
    """

    def __init__(
        self,
        qkv_T3C: Tensor,
        bias_hNN: Tensor,
        batch: int,
        height: int,
        width: int,
        window_size: list[int],
        shift: list[int],
        mask_padding: bool,
        programs: int = 0,
        is_wide: bool = False,
    ):
        self.programs = programs
        self.size, self.window_size, self.shift = (height, width), window_size, shift
        is_padded = bool(height % window_size[0] or width % window_size[1])
        self.mask_padding = mask_padding and is_padded
        self.counts = tuple(-(-length // window) for length, window in zip(self.size, window_size))
        self.num_windows = batch * self.counts[0] * self.counts[1]
        self.num_tokens = batch * height * width
        self.places = window_size[0] * window_size[1]
        self.heads, self.channels = bias_hNN.shape[0], qkv_T3C.shape[1] // 3
        self.head_tile = _round_to_tile(self.channels // self.heads)
        self.dtype, self.device = qkv_T3C.dtype, qkv_T3C.device
        self.tf32 = self.dtype == torch.float32 and allows_tf32()
        # Offsets of elements of q, k and v, or of a place's log-sum-exp
        offsets = (
            self.num_tokens * max(3 * self.channels, qkv_T3C.stride(0)),
            self.num_windows * self.places * self.heads,
        )
        self.is_wide = is_wide or max(offsets) >= INT32_OFFSETS

    @property
    def variant(self) -> Variant:
        (Wh, Ww), (down, right) = self.window_size, self.shift
        map_settings = (Wh, Ww), (down, right), self.mask_padding, self.is_wide
        return Variant(self.device, self.dtype, self.channels // self.heads, *map_settings, self.tf32)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.num_windows, self.num_tokens, *self.size, *self.counts

    def make_query_options(self, num_stages: int = 2) -> dict[str, Any]:
        """Return the options of a kernel for queries: the sides of a tile, warps and stages.

        In a backward, tiles of a second stage would fill too many registers.
        """
        side = min(ONE_TILE, _round_to_tile(self.places))
        return dict(Q=side, K=side, num_warps=4, num_stages=num_stages)

    def make_key_options(self) -> dict[str, Any]:
        """Return the options of the kernel for gradients of keys. A single tile also computes gradients of queries."""
        if self.places <= ONE_TILE:
            return self.make_query_options(num_stages=1)  # 8 warps take 128 rows, and a tile has 64
        return dict(Q=_round_to_tile(self.places), K=32, num_warps=8, num_stages=1)

    def make_constants(self) -> dict[str, Any]:
        """Return the compile-time constants of a kernel, without tile sizes."""
        from triton import language

        return dict(
            HEAD_DIM=self.channels // self.heads,
            WINDOW_H=self.window_size[0],
            WINDOW_W=self.window_size[1],
            SHIFT_H=self.shift[0],
            SHIFT_W=self.shift[1],
            MASK_PADDING=self.mask_padding,
            MASKED=any(self.shift) or self.mask_padding,
            D=self.head_tile,
            PRECISION='tf32' if self.tf32 else 'ieee',
            WIDEN=self.dtype == torch.bfloat16 and is_interpreted(),
            INDEX=language.int64 if self.is_wide else language.int32,
        )

    def choose_grid(self, options: dict[str, Any]) -> tuple[int, int, int]:
        """Return heads, programs for all windows, blocks. Heads are the fastest axis, since heads share cache lines.

        The number of programs is about the device's capacity. The programs' numbers of windows are almost equal. The
        number of places of a block is the shorter side of a tile.
        """
        blocks = -(-self.places // min(options['Q'], options['K']))
        programs = self.programs or 4 * _count_programs(self.device) // (options['num_warps'] * self.heads * blocks)
        rounds = -(-self.num_windows // max(1, programs))
        return self.heads, max(1, -(-self.num_windows // max(1, rounds))), blocks


def _count_programs(device: torch.device) -> int:
    if device.type != 'cuda':
        return PROGRAMS_OF_A_CPU
    return PROGRAMS_OF_A_MULTIPROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def _round_to_tile(length: int) -> int:
    """Return the side of a tile for tensor cores: the next power of two, at least 16."""
    return max(16, 1 << (length - 1).bit_length())
