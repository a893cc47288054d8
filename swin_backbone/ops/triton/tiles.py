"""How attention over the windows of maps is cut into programs and tiles.

Layout: T tokens, C channels, h heads, N places of a window.
"""

import os
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

# Compilation tells, without a GPU, what a program needs of registers and shared memory: these were chosen so that
# nothing, or little, is spilled on sm_80 and sm_90 with heads of 16 to 32 channels in half precision. They were not
# tuned on a GPU.
PROGRAMS_PER_MULTIPROCESSOR = 8
ONE_TILE = 64  # windows of at most so many places are one tile
STAGED_BYTES = 64  # of a head's channels: beyond, two stages of all queries of a window need too much shared memory


class Tiling(NamedTuple):
    """One launch: programs, and the options of the kernel that depend on its tiles."""

    grid: tuple[int, int, int]  # heads, programs that share the windows, blocks of a window
    options: dict[str, Any]


class Tiles:
    """The sizes all launches share.

    Args:
        programs: that share the windows of a head; None: as many as keep the device busy.
        others: see `attend_in_windows`.
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
        programs: Optional[int] = None,
    ):
        self.programs = programs
        self.size, self.window_size, self.shift, self.mask_padding = (height, width), window_size, shift, mask_padding
        self.counts = tuple(-(-length // window) for length, window in zip(self.size, window_size))
        self.num_windows = batch * self.counts[0] * self.counts[1]
        self.num_tokens = batch * height * width
        self.places = window_size[0] * window_size[1]
        self.heads, self.channels = bias_hNN.shape[0], qkv_T3C.shape[1] // 3
        self.head_tile = _tile(self.channels // self.heads)
        self.dtype, self.device = qkv_T3C.dtype, qkv_T3C.device
        self.row_stride = max(3 * self.channels, qkv_T3C.stride(0))

    @property
    def is_wide(self) -> bool:
        """Whether the elements of q, k and v lie further apart than int32 counts."""
        return (self.num_tokens + 1) * self.row_stride >= 2**31

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.num_windows, self.num_tokens, *self.size, *self.counts

    def forward(self) -> Tiling:
        return self._blocks(64, 64, num_warps=4) if self.places > ONE_TILE else self._one_tile(num_warps=4)

    def backward(self) -> Tiling:
        """Of keys and, in one tile, of queries too."""
        if self.places <= ONE_TILE:
            # Warp groups, which GeForce cards lack, share 64 queries; without them 8 warps compute everything twice.
            return self._one_tile(num_warps=8 if _device(self.device).major in (9, 10) else 4)
        stages = 2 if self.head_tile * self.dtype.itemsize <= STAGED_BYTES else 1
        return self._blocks(_tile(self.places), 32, num_warps=8, num_stages=stages)

    def backward_queries(self) -> Tiling:
        return self._blocks(64, 64, num_warps=4)

    def constants(self) -> dict[str, Any]:
        """What is known when a kernel is compiled, besides its tiles."""
        from triton import language

        padded = any(count * window > length for count, window, length in zip(self.counts, self.window_size, self.size))
        tf32 = self.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        return dict(
            HEAD_DIM=self.channels // self.heads,
            WINDOW_H=self.window_size[0],
            WINDOW_W=self.window_size[1],
            SHIFT_H=self.shift[0],
            SHIFT_W=self.shift[1],
            MASK_PADDING=self.mask_padding,
            MASKED=any(self.shift) or (self.mask_padding and padded),
            D=self.head_tile,
            PRECISION='tf32' if tf32 else 'ieee',
            WIDEN=self.dtype == torch.bfloat16 and is_interpreted(),
            INDEX=language.int64 if self.is_wide else language.int32,
        )

    def _one_tile(self, num_warps: int) -> Tiling:
        return self._blocks(_tile(self.places), _tile(self.places), num_warps)

    def _blocks(self, Q: int, K: int, num_warps: int, num_stages: int = 2) -> Tiling:
        """Blocks of as many places as the shorter side of a tile. Heads run first, as they share cache lines."""
        blocks = -(-self.places // min(Q, K))
        all_programs = PROGRAMS_PER_MULTIPROCESSOR * _device(self.device).multi_processor_count
        programs = self.programs or all_programs // (self.heads * blocks)
        grid = self.heads, max(1, min(self.num_windows, programs)), blocks
        return Tiling(grid, dict(Q=Q, K=K, num_warps=num_warps, num_stages=num_stages))


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def _tile(length: int) -> int:
    """What the tensor cores' tiles are made of: a power of two, at least 16."""
    return max(16, 1 << (length - 1).bit_length())


class _Device(NamedTuple):
    multi_processor_count: int = 1
    major: int = 0  # of the compute capability


@lru_cache(maxsize=64)
def _device(device: torch.device) -> _Device:
    if device.type != 'cuda':
        return _Device()
    properties = torch.cuda.get_device_properties(device)
    return _Device(properties.multi_processor_count, properties.major)
