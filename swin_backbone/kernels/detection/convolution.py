"""3x3 convolutions by the compiled library, with gradients (Lavin and Gray 2016, arXiv 1509.09308).

The library computes F(4x4, 3x3), and F(6x6, 3x3) for large bfloat16 maps.

Layout: B maps, H W height and width of a map, C channels, N output channels.
"""

from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..native.availability import find_reason_against_dtype
from ..native.interface import MakeWeights, Weights
from ..native.library import DTYPES, GEMM_DTYPES, ConvolutionStruct, get_libswin
from ..native.memory import Cache, empty, is_readable, make_once, require_address, takes_sizes
from ..native.plans import run_computation
from . import FLOATS, takes_tensor

TILES = 4, 6  # outputs along the sides of a tile
POINTS = {side: (side + 2) ** 2 for side in TILES}  # products for a tile and a pair of channels
PACKING = 500  # tiles: see `choose_tile`
# With fewer, transforming takes more time than the products save.
MIN_CHANNELS = 32
MIN_TILES = 32


def takes_maps(x_BCHW: Tensor, weight_NC33: Tensor, bias_N: Optional[Tensor]) -> bool:
    """Return whether `convolve` takes the arguments, and is faster than torch. Torch raises errors for wrong arguments.

    In bfloat16 the processor must have instructions for bfloat16, but not AMX: by AMX torch takes less time.
    """
    (N, C), tensors = weight_NC33.shape[:2], [t for t in (x_BCHW, weight_NC33, bias_N) if t is not None]
    return bool(
        x_BCHW.dim() == 4
        and x_BCHW.shape[1] == C
        and min(N, C) >= MIN_CHANNELS
        and takes_tensor(x_BCHW)
        and _takes_dtype(_find_dtype(*tensors))
        and all(map(is_readable, tensors))
        and count_tiles(4, len(x_BCHW), *x_BCHW.shape[2:]) >= MIN_TILES
        and takes_sizes('convolution', max(TILES), len(x_BCHW), *x_BCHW.shape[2:], C, N)
    )


def count_tiles(side: int, B: int, H: int, W: int) -> int:
    """Return the number of tiles of `side` outputs to cover maps."""
    return B * -(-H // side) * -(-W // side)


def choose_tile(x_BHWC: Tensor, is_packed: bool) -> int:
    """Return the side of the tiles with the least time.

    The time is the products' time. An unpacked weight adds the time of `PACKING` tiles. In float32 the side is 4: 6 has
    several times the rounding error. The rounding of bfloat16 hides the error.
    """
    if x_BHWC.dtype is not torch.bfloat16:
        return 4
    overhead = 0 if is_packed else PACKING
    return min(TILES, key=lambda side: POINTS[side] * (count_tiles(side, *x_BHWC.shape[:3]) + overhead))


def _find_dtype(*tensors: Tensor) -> Optional[torch.dtype]:
    """Return the dtype of torch's convolution of the tensors; None: torch refuses the tensors."""
    dtypes = {t.dtype for t in tensors}
    if torch.is_autocast_enabled('cpu') and dtypes <= {*FLOATS}:
        return torch.get_autocast_dtype('cpu')
    return dtypes.pop() if len(dtypes) == 1 else None


def _takes_dtype(dtype: Optional[torch.dtype]) -> bool:
    if dtype is None or find_reason_against_dtype(dtype) is not None:
        return False
    return GEMM_DTYPES[dtype] is torch.float32 or get_libswin().isa != 'amx'


def convolve(x_BCHW: Tensor, weight_NC33: Tensor, bias_N: Optional[Tensor], cache: Optional[Cache] = None) -> Tensor:
    """Return `F.conv2d(x, weight, bias, padding=1)` of maps on a CPU, (B, N, H, W) in channels_last memory.

    Maps are float32, bfloat16 or float16, or of the dtype of autocast. Weight and bias may have any floating dtype:
    products are float32. Outputs and gradients differ from torch's by 3e-6 of the largest value, in bfloat16 by the
    rounding of bfloat16. The packed weight has 4 times the memory of a float32 weight, and 7 times for large bfloat16
    maps.

    Args:
        cache: of packed weights; a head may have maps of many sizes, and so weights for several tiles.

    Raises:
        ValueError: if an argument does not fit.
    """
    is_trained = torch.is_grad_enabled() and weight_NC33.requires_grad
    dtype = _find_dtype(x_BCHW) or x_BCHW.dtype
    x_BHWC = x_BCHW.permute(0, 2, 3, 1).to(dtype=GEMM_DTYPES.get(dtype, dtype)).contiguous()
    y_BHWN = run_computation(_Convolution(cache, is_trained), _convolve_by_torch, x_BHWC, weight_NC33, bias_N)
    return y_BHWN.permute(0, 3, 1, 2).to(dtype=dtype)


class _Convolution(NamedTuple):
    """See `native.interface.Computation`."""

    cache: Optional[Cache]
    is_trained: bool

    def prepare(self, _: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> Sequence[Any]:
        return parameters

    def forward(self, x_BHWC: Tensor, prepared: Sequence[Any]) -> Sequence[Tensor]:
        weight, bias = prepared
        tile = choose_tile(x_BHWC, self.cache is not None and not self.is_trained)
        if self.cache is None:
            packed = pack(weight, tile)
        else:
            weight_N33C = weight.permute(0, 2, 3, 1)
            (packed,) = make_once([weight_N33C], (), lambda: [pack(weight, tile)], self.cache, f'tiles of {tile}')
        return (convolve_packed(x_BHWC, packed, tile, bias, len(weight)),)

    def backward(
        self,
        grad_BHWN: Tensor,
        needed: Sequence[bool],
        x_BHWC: Tensor,
        prepared: Sequence[Any],
        weights: Sequence[Any],
        saved: Sequence[Tensor],
    ) -> Weights:
        weight, (N, C) = weights[0], weights[0].shape[:2]
        grad_x = grad_weight = grad_bias = None
        if needed[0]:
            tile = choose_tile(grad_BHWN, False)
            packed = pack(weight.flip(2, 3).transpose(0, 1), tile)
            grad_x = convolve_packed(grad_BHWN, packed, tile, None, C)
        if any(needed[1:]):
            # torch emulates products of bfloat16 on a processor without bfloat16
            dtype = x_BHWC.dtype if get_libswin().has_bf16_gemm else torch.float32
            _, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
                grad_BHWN.to(dtype).permute(0, 3, 1, 2),
                x_BHWC.to(dtype).permute(0, 3, 1, 2),
                weight.to(dtype),
                [N],
                *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, (False, *needed[1:])),
            )
        return grad_x, grad_weight, grad_bias


def _convolve_by_torch(x_BHWC: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    weight, bias = weight.to(x_BHWC.dtype), None if bias is None else bias.to(x_BHWC.dtype)
    return F.conv2d(x_BHWC.permute(0, 3, 1, 2), weight, bias, padding=1).permute(0, 2, 3, 1)


def pack(weight_NC33: Tensor, tile: int) -> Tensor:
    """Return a weight in the order of `convolve_packed` for tiles of the side `tile`: POINTS[tile] N C numbers."""
    weight_N33C = weight_NC33.permute(0, 2, 3, 1).float().contiguous()
    N, C = weight_NC33.shape[:2]
    packed = empty(POINTS[tile] * N * C)
    weight_ptr = require_address('weight', weight_N33C, (N, 3, 3, C))
    packed_ptr = require_address('packed weight', packed)
    get_libswin().pack_convolution(weight_ptr, tile, N, C, torch.get_num_threads(), packed_ptr)
    return packed


def convolve_packed(x_BHWC: Tensor, packed: Tensor, tile: int, bias_N: Optional[Tensor], N: int) -> Tensor:
    """Return maps (B, H, W, N) of the dtype of `x_BHWC`."""
    B, H, W, C = x_BHWC.shape
    y_BHWN = empty(B, H, W, N, dtype=x_BHWC.dtype)
    bias_N = None if bias_N is None else bias_N.float().contiguous()
    structure = ConvolutionStruct(
        dtype=DTYPES.index(x_BHWC.dtype), threads=torch.get_num_threads(), tile=tile,
        batch=B, height=H, width=W, channels=C, outputs=N,
        weight=require_address('packed', packed, (POINTS[tile] * N * C,)), bias=require_address('bias', bias_N, (N,)),
    )  # fmt: skip
    x, y = (require_address('map', maps, dtype=x_BHWC.dtype) for maps in (x_BHWC, y_BHWN))
    get_libswin().convolution_forward(byref(structure), x, y)
    return y_BHWN
