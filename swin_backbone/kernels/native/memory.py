"""Memory of tensors for the compiled library: addresses, packed weights and checksums.

The library gets addresses and sizes (csrc/swin.h). `require_address` checks the dtype, shape and memory of a tensor,
and `size_limits.py` the sizes.

Layout: N outputs and K inputs of a linear layer.
"""

from collections.abc import Callable, Sequence
from ctypes import byref, c_int64, c_uint64, c_void_p
from functools import partial
from typing import Any, NamedTuple, NoReturn, Optional, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...compat import constant_when_compiled
from ...modes import is_plain_or_fake, needs_torch_op
from ...replace import Reason, Unsupported
from .library import DTYPES, GEMM_DTYPES, get_libswin
from .size_limits import find_reason_against_sizes

Value = TypeVar('Value')
Cache = dict[str, tuple[Any, Any]]  # {role: (key, value)}, see `make_once`
LINE = 64  # bytes of a cache line
float32 = torch.float32
# Return memory on the CPU, under any default dtype and device.
empty: Callable[..., Tensor] = partial(torch.empty, dtype=float32, device='cpu')


def is_readable(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor are in memory at the tensor's address.

    Negated views, sparse tensors, misaligned tensors and subclasses, which may compute differently, are not readable.
    """
    is_plain = type(tensor) is Tensor or type(tensor) is nn.Parameter
    if not (is_plain and tensor.is_cpu and tensor.layout is torch.strided) or tensor.is_neg():
        return False
    first = tensor.data_ptr()
    return first % tensor.itemsize == 0 and (first != 0 or tensor.numel() == 0)


def empty_aligned(num_bytes: int) -> Tensor:
    """Return memory of bytes, uint8, that begins at a cache line."""
    memory = empty(num_bytes + LINE, dtype=torch.uint8)
    return memory[-memory.data_ptr() % LINE :][:num_bytes]


def require_sizes(function: str, *sizes: Any) -> None:
    """Raise `Unsupported` for sizes that the library does not take, see `size_limits.find_reason_against_sizes`."""
    reason = _find_reason_with_threads(function, *sizes)
    if reason is not None:
        raise Unsupported(reason)


def takes_sizes(function: str, *sizes: int) -> bool:
    """Return whether the library takes the sizes of a call, see `size_limits.find_reason_against_sizes`."""
    return _find_reason_with_threads(function, *sizes) is None


@constant_when_compiled  # returns, not raises: torch.compile cannot catch an error of a constant function
def _find_reason_with_threads(function: str, *sizes: Any) -> Optional[Reason]:
    return find_reason_against_sizes(function, torch.get_num_threads(), *sizes)


def require_tensor(name: str, tensor: Optional[Tensor], shape: Sequence[int]) -> None:
    """Raise `Unsupported` for a tensor that the library does not take. Nothing reads memory; see `require_address`."""
    if tensor is not None:
        is_taken = tensor.device.type == 'cpu' and tensor.dtype is float32 and is_plain_or_fake(tensor)
        if not is_taken or tuple(tensor.shape) != tuple(shape):
            refuse_tensor(name, tensor, shape, float32)


def refuse_tensor(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> NoReturn:
    """Raise `Unsupported`: the library takes a tensor of the shape and dtype, but not this one."""
    advice = '; autocast computes in half precision with float32 weights' if tensor.itemsize == 2 else ''
    has_shape = tuple(tensor.shape) == tuple(shape)
    wanted, found = ('', '') if has_shape else (f' of {list(shape)}', f'{list(tensor.shape)}, ')
    found = f'{found}{tensor.dtype} on {tensor.device}{advice}'
    if has_shape and tensor.dtype is dtype and tensor.device.type == 'cpu':
        found = f'a {type(tensor).__name__} without contiguous, aligned memory of its own'
    raise Unsupported(f'The compiled library takes {name}{wanted}, {dtype} in memory, not {found}.')


def require_address(
    name: str,
    tensor: Optional[Tensor],
    shape: Optional[Sequence[int]] = None,
    dtype: torch.dtype = float32,
    allows_gaps: bool = False,
) -> Optional[int]:
    """Check a tensor, and return its address; None for None. The library gets no other addresses.

    Args:
        shape: that the library takes, a tuple; None: any shape.
        allows_gaps: whether the library takes any strides; otherwise the tensor must be contiguous.

    Raises:
        Unsupported: if the shape, dtype or memory is not the required one.
    """
    if tensor is None:
        return None
    is_wanted = (shape is None or tensor.shape == shape) and tensor.dtype is dtype
    if is_wanted and is_readable(tensor) and (allows_gaps or tensor.is_contiguous()):
        return tensor.data_ptr()
    refuse_tensor(name, tensor, tensor.shape if shape is None else shape, dtype)


def pack_linear(weight: Tensor, dtype: torch.dtype, unit: int, transposed: bool = False) -> Tensor:
    """Return a weight (N, K...), or the transpose, in the library's order.

    Args:
        dtype: of the products, equal to autocast's dtype. Products of float16 are computed in float32.
        unit: neighbouring outputs that are never split, see swin_pack in csrc/swin.h.
    """
    libswin, dtype = get_libswin(), GEMM_DTYPES[dtype]
    weight_NK = weight.detach().flatten(1).contiguous()
    N, K = weight_NK.shape
    panels = empty(libswin.packed_size(dtype, *((K, N) if transposed else (N, K))), dtype=dtype)
    address = require_address('weight', weight_NK)
    packed = require_address('packed weight', panels, dtype=dtype)
    libswin.pack(DTYPES.index(dtype), address, N, K, unit, transposed, torch.get_num_threads(), packed)
    return panels


def checksum(tensors: Sequence[Tensor]) -> int:
    """Return a hash of all bytes of readable tensors. A change of a single element changes the hash."""
    tensors = [tensor.contiguous() if tensor.layout is torch.strided else tensor for tensor in tensors]
    count, hashed = len(tensors), c_uint64()
    pieces = (c_void_p * count)(*[require_address('tensor', tensor, dtype=tensor.dtype) for tensor in tensors])
    sizes = (c_int64 * count)(*[tensor.nbytes for tensor in tensors])
    get_libswin().checksum(pieces, sizes, count, torch.get_num_threads(), byref(hashed))
    return hashed.value


_caches_of_modules: WeakKeyDictionary[nn.Module, Cache] = WeakKeyDictionary()
# {storage: {offset in the storage: cache}}
_caches_of_weights: WeakKeyDictionary[torch.UntypedStorage, dict[int, Cache]] = WeakKeyDictionary()


def find_cache(module: nn.Module) -> Cache:
    """Return the cache of a module for `make_once`, at first empty, for a copy too. In a graph it is thrown away."""
    return {} if needs_torch_op() else _caches_of_modules.setdefault(module, {})


def find_weight_cache(weight: Tensor) -> Cache:
    """Return the cache of the layer whose first weight this is; freed with the memory of the weight."""
    return _caches_of_weights.setdefault(weight.untyped_storage(), {}).setdefault(int(weight.storage_offset()), {})


class PackedWeights(NamedTuple):
    """Weights in the library's order.

    Attributes:
        tensors: hold the memory.
        addresses: of the tensors, by field of a structure of the library.
    """

    tensors: Sequence[Optional[Tensor]]
    addresses: dict[str, Any]


def make_once(
    weights: Sequence[Optional[Tensor]],
    settings: tuple[Any, ...],
    make: Callable[[], Value],
    cache: Cache,
    role: str = 'packed',
) -> Value:
    """Return the cached value, or make it if a setting or an element of a weight has changed.

    `Tensor._version` does not count writes of fused optimizers, through `.data` and by numpy. Therefore every call
    computes a checksum of the weights, in less than a seventh of the time of packing. `make` checks the tensors. A hit
    has equal shapes, dtypes and bytes, so it is checked already.

    Raises:
        Unsupported: if the library cannot read a weight.
    """
    present = [weight for weight in weights if weight is not None]
    key = settings, [w if w is None else (w.shape, w.dtype) for w in weights], checksum(present)
    entry = cache.get(role)  # read once: a second thread may replace the entry
    if entry is not None and entry[0] == key:
        return entry[1]
    cache.pop(role, None)  # frees the old tensors before `make` allocates
    with torch.no_grad():
        value = make()
    if checksum(present) == key[-1]:  # a second thread may write the weights meanwhile
        cache[role] = key, value
    return value
