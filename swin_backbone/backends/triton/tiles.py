"""Programs and tiles of attention over the windows of maps.

Layout: T tokens, C channels, h heads, N places of a window.
"""

import os
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

# Compilation shows, without a GPU, how many registers and how much shared memory a program needs. The values spill few
# or no registers on sm_80 to sm_120, for heads of 16 to 32 channels in half precision. The values are not tuned on a
# GPU.
PROGRAMS_OF_A_CPU = 8  # the interpreter runs programs in turn
ONE_TILE = 64  # the most places of a window in a single tile
STAGED_BYTES = 64  # bytes of a head's channels; for more bytes, two stages of all queries need too much shared memory


IN_FLOAT32 = ('bias_ptr', 'lse_ptr', 'grad_bias_ptr', 'grad_padding_ptr')


class Tiling(NamedTuple):
    """A kernel's cut of windows."""

    blocks: int  # of a window
    options: dict[str, Any]  # of the kernel, by tiles


class Tiles:
    """The sizes of all launches.

    Args:
        programs: the number of programs for the windows of a head; None: enough to keep the device busy.
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
        """Whether offsets of elements of q, k and v, or of a place's log-sum-exp, do not fit in int32."""
        return max(self.num_tokens * self.row_stride, self.num_windows * self.places * self.heads) >= 2**31

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.num_windows, self.num_tokens, *self.size, *self.counts

    def forward(self) -> Tiling:
        return self._blocks(64, 64, num_warps=4) if self.places > ONE_TILE else self._one_tile(num_warps=4)

    def backward(self) -> Tiling:
        """Return the tiling of the kernel for gradients of keys. A single tile also computes gradients of queries."""
        if self.places <= ONE_TILE:
            return self._one_tile(num_warps=4)  # 8 warps would compute some of 64 queries twice
        stages = 2 if self.head_tile * self.dtype.itemsize <= STAGED_BYTES else 1
        return self._blocks(_tile(self.places), 32, num_warps=8, num_stages=stages)

    def backward_queries(self) -> Tiling:
        return self._blocks(64, 64, num_warps=4)

    def constants(self, has_padding: bool) -> dict[str, Any]:
        """Return the compile-time constants of a kernel, without tile sizes.

        Args:
            has_padding: whether the caller gives query, key and value of padding; False: zeros.
        """
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
            PADDED=has_padding,
        )

    def _one_tile(self, num_warps: int) -> Tiling:
        return self._blocks(_tile(self.places), _tile(self.places), num_warps)

    def _blocks(self, Q: int, K: int, num_warps: int, num_stages: int = 2) -> Tiling:
        """Return a tiling. The number of places of a block is the shorter side of a tile."""
        blocks = -(-self.places // min(Q, K))
        return Tiling(blocks, dict(Q=Q, K=K, num_warps=num_warps, num_stages=num_stages))

    def grid(self, kernel: Any, tiling: Tiling, constants: dict[str, Any]) -> tuple[int, int, int]:
        """Return heads, programs for all windows, blocks. Heads are the fastest axis, since heads share cache lines.

        The number of programs is about the device's capacity. The programs' numbers of windows are almost equal.
        """
        programs = self.programs
        if programs is None:
            keywords = tuple({**constants, **tiling.options}.items())
            programs = resident_programs(kernel, self.device, self.dtype, keywords) // (self.heads * tiling.blocks)
        rounds = -(-self.num_windows // max(1, programs))
        return self.heads, max(1, -(-self.num_windows // max(1, rounds))), tiling.blocks


@lru_cache(maxsize=256)
def resident_programs(
    kernel: Any, device: torch.device, dtype: torch.dtype, keywords: tuple[tuple[str, Any], ...]
) -> int:
    """Return how many programs of a kernel a device can hold at a time, by registers, shared memory and warps.

    Args:
        dtype: of queries, keys and values.
        keywords: the kernel's constants and options, by name.
    """
    if device.type != 'cuda':
        return PROGRAMS_OF_A_CPU
    with torch.cuda.device(device):
        compiled = kernel.warmup(*signature(kernel, dtype, dict(keywords)), grid=(1, 1, 1), **dict(keywords))
        compiled.run  # loads the kernel, for the number of registers # noqa: B018
    properties, warps = torch.cuda.get_device_properties(device), dict(keywords)['num_warps']
    multiprocessors: int = properties.multi_processor_count
    return multiprocessors * programs_per_multiprocessor(compiled.n_regs, compiled.metadata.shared, warps, properties)


def programs_per_multiprocessor(registers: int, shared: int, warps: int, properties: Any) -> int:
    """Return how many programs a multiprocessor can hold at a time.

    Args:
        registers: of a thread.
        shared: bytes of shared memory of a program.
        warps: of a program.
        properties: of the device, from torch.
    """
    # A warp gets registers in units of 256. A program takes 1 KiB of shared memory beside the kernel's.
    by_registers = 65536 // (-(-registers * 32 // 256) * 256 * warps)
    by_shared: int = getattr(properties, 'shared_memory_per_multiprocessor', 100 * 1024) // (shared + 1024)
    by_warps: int = properties.max_threads_per_multi_processor // (32 * warps)
    return max(1, min(by_registers, by_shared, by_warps))


def signature(kernel: Any, dtype: torch.dtype, constants: dict[str, Any]) -> list[Any]:
    """Return the dtype of a pointer, or a number of the right type, for all arguments except constants."""
    arguments: list[Any] = []
    for name in kernel.arg_names:
        if name.endswith('_ptr'):
            arguments.append(torch.float32 if name in IN_FLOAT32 else dtype)
        elif name not in constants:
            arguments.append(1.0 if name == 'scale' else 48)
    return arguments


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def _tile(length: int) -> int:
    """Return the side of a tile for tensor cores: the next power of two, at least 16."""
    return max(16, 1 << (length - 1).bit_length())
