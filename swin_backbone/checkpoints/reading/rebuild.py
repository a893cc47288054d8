"""Stand-ins for what a pickled checkpoint calls: tensors, numpy's arrays, mmengine's HistoryBuffer from plain values.

Each takes the budget first, and checks every value it is given: sizes against the bytes that are there, kinds of
numbers against a short list. What does not fit is a ValueError or TypeError.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from numpy.typing import NDArray
from torch import Tensor

from .budget import Budget
from .plain import Built, Forbidden, Name, checked_key

MAX_DIMENSIONS = 32
HISTORY_BUFFER = 'mmengine.logging.history_buffer.HistoryBuffer'
_NUMBERS = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8', 'c8', 'c16')
_TORCH_DTYPES = (
    'float32', 'float64', 'float16', 'bfloat16', 'uint8', 'int8', 'int16', 'int32', 'int64', 'bool', 'complex32',
    'complex64', 'complex128', 'uint16', 'uint32', 'uint64', 'float8_e4m3fn', 'float8_e5m2', 'float8_e4m3fnuz',
    'float8_e5m2fnuz', 'float8_e8m0fnu',
)  # fmt: skip
TORCH_DTYPES = {f'torch.{name}': getattr(torch, name) for name in _TORCH_DTYPES if hasattr(torch, name)}


class Storage(NamedTuple):
    """The memory of tensors."""

    bytes: Tensor  # uint8, flat
    dtype: Optional[torch.dtype]  # None where each tensor says its own


def _sizes(value: Any) -> tuple[int, ...]:
    """Sizes, strides or an offset that are what they should be."""
    if type(value) not in (tuple, list) or len(value) > MAX_DIMENSIONS:
        raise ValueError(f'sizes that are none: {value!r:.80}')
    if not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f'a negative size, or one that is no number: {value!r:.80}')
    return tuple(value)


def check_tensor(tensor: Tensor, budget: Budget) -> None:
    """What else is checked of a tensor that another library has read.

    Raises:
        CheckpointError: if it is too large.
        ValueError: if it has truth values other than 0 and 1, which are undefined behaviour in C++.
    """
    _charge_for(tuple(tensor.shape), tensor.element_size(), budget)
    if tensor.dtype == torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
        raise ValueError('truth values other than 0 and 1')


def _charge_for(shape: tuple[int, ...], item_bytes: int, budget: Budget) -> None:
    """Also where it has no memory of its own: whoever copies it needs as much. A size of 0 hides no other."""
    budget.charge(math.prod(max(size, 1) for size in shape) * item_bytes)


def _tensor(
    budget: Budget,
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    dtype: Optional[torch.dtype],
    more: tuple[Any, ...],
) -> Tensor:
    """See `torch._utils._rebuild_tensor_v2`; gradients are none of a checkpoint's."""
    if type(storage) is not Storage or dtype is None or any(more):
        raise TypeError('a tensor that is no plain one')
    shape, strides, (start,) = _sizes(size), _sizes(stride), _sizes((offset,))
    if len(shape) != len(strides):
        raise ValueError(f'a tensor of {len(shape)} sizes and {len(strides)} strides')
    _charge_for(shape, dtype.itemsize, budget)
    available = len(storage.bytes) // dtype.itemsize
    last = start + sum((side - 1) * step for side, step in zip(shape, strides)) if all(shape) else start - 1
    if last >= available or max(strides, default=0) > max(available, math.prod(max(side, 1) for side in shape)):
        raise ValueError(f'a tensor of {shape} that reaches out of its {available} numbers')
    tensor = torch.empty(0, dtype=dtype, device=storage.bytes.device)
    return tensor.set_(storage.bytes.untyped_storage(), start, shape, strides)


def _tensor_v2(
    budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = None, hooks: Any = None,
    metadata: Any = None,
) -> Tensor:  # fmt: skip
    return _tensor(budget, storage, offset, size, stride, getattr(storage, 'dtype', None), (hooks, metadata))


def _tensor_v3(
    budget: Budget, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any,
    metadata: Any = None,
) -> Tensor:  # fmt: skip
    named = TORCH_DTYPES.get(dtype.text) if type(dtype) is Name else None
    if getattr(storage, 'dtype', named) is not None or named == torch.bool:  # torch has typed storages for these
        raise TypeError('a tensor of another dtype than its storage')
    return _tensor(budget, storage, offset, size, stride, named, (hooks, metadata))


def _tensor_of_type(budget: Budget, function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes, which are left out."""
    if kind.text not in ('torch.Tensor', 'torch.nn.parameter.Parameter'):
        raise Forbidden([kind.text])
    if not function.text.startswith('torch._utils._rebuild_') or function.text not in CALLS:
        raise Forbidden([function.text])
    return CALLS[function.text](budget, *arguments)


def _parameter(budget: Budget, tensor: Any, *_: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError('a parameter of no tensor')
    return tensor


class _DType(Built):
    """numpy's dtype of a number. A BUILD may say no more of it than the order of its bytes."""

    def __init__(self, kind: Any):
        if kind not in _NUMBERS:
            raise ValueError(f'a numpy dtype {kind!r:.20}; plain numbers were expected')
        self.dtype = np.dtype(kind)

    def build(self, state: Any) -> None:
        if type(state) is not tuple or state[:1] != (3,) or state[2:] != (None, None, None, -1, -1, 0):
            raise ValueError('a numpy dtype of more than numbers')
        if state[1] not in ('<', '>', '|'):
            raise ValueError(f'a numpy dtype with bytes in the order {state[1]!r:.20}')
        self.dtype = self.dtype.newbyteorder(state[1])

    def finish(self) -> Any:
        raise Forbidden(['numpy.dtype'])


def _numbers(dtype: Any, data: Any, count: int) -> NDArray[Any]:
    """Bytes as a flat array of its own, in this machine's order of bytes."""
    if type(dtype) is not _DType:
        raise TypeError('an array of no dtype')
    data = data.encode('latin1') if type(data) is str else data  # as Python 2 has it
    if type(data) is not bytes or len(data) != count * dtype.dtype.itemsize:
        raise ValueError(f'an array of {count} numbers with the bytes of others')
    if dtype.dtype == bool and data.strip(b'\0\1'):
        raise ValueError('truth values other than 0 and 1')
    return np.frombuffer(data, dtype.dtype).astype(dtype.dtype.newbyteorder('='))


def _numpy_dtype(budget: Budget, kind: Any, align: Any = False, copy: Any = False) -> _DType:
    return _DType(kind)


def _numpy_scalar(budget: Budget, dtype: Any, data: Any) -> np.generic:
    scalar: np.generic = _numbers(dtype, data, 1)[0]
    return scalar


class _Array(Built):
    """numpy's array, empty until a BUILD says what is in it."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self.array: Optional[NDArray[Any]] = None

    def build(self, state: Any) -> None:
        _, size, dtype, by_columns, data = state
        shape = _sizes(size)
        if type(dtype) is not _DType:
            raise TypeError('an array of no dtype')
        _charge_for(shape, dtype.dtype.itemsize, self.budget)
        numbers = _numbers(dtype, data, math.prod(shape))
        self.array = numbers.reshape(shape, order='F' if by_columns is True else 'C')

    def finish(self) -> NDArray[Any]:
        if self.array is None:
            raise ValueError('an array without contents')
        return self.array


def _numpy_array(budget: Budget, kind: Any, shape: Any, code: Any) -> _Array:
    if kind.text != 'numpy.ndarray' or shape != (0,):
        raise ValueError('an array that is not empty before it is filled')
    return _Array(budget)


def _numpy_from_buffer(budget: Budget, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """As numpy pickles an array in protocol 5."""
    array = _Array(budget)
    array.build((1, shape, dtype, order == 'F', data))
    return array


class _History(Built):
    """mmengine's HistoryBuffer, of arrays that were checked; its methods are those of this process."""

    def __init__(self, budget: Budget):
        self.state: dict[str, Any] = {}

    def build(self, state: Any) -> None:
        if type(state) is not dict:
            raise TypeError('a HistoryBuffer of no dict')
        self.state = state

    def finish(self) -> HistoryBuffer:
        values, counts = (self._array(name) for name in ('_log_history', '_count_history'))
        max_length = self.state.get('max_length', len(values))
        if type(max_length) is not int or len(values) != len(counts) or len(values) > max_length:
            raise ValueError('a HistoryBuffer of unlike lengths')
        return HistoryBuffer(values, counts, max_length)

    def _array(self, name: str) -> NDArray[Any]:
        array = self.state[name]
        if type(array) is not _Array or array.finish().ndim != 1:
            raise TypeError('a HistoryBuffer of something else than arrays')
        return array.finish()


def _getattr(budget: Budget, owner: Any, name: Any) -> Name:
    """A method of HistoryBuffer; nothing but a HistoryBuffer can hold it, and that leaves it out."""
    if type(owner) is not Name or owner.text != HISTORY_BUFFER or type(name) is not str or name.startswith('_'):
        raise Forbidden(['builtins.getattr'])
    return Name(f'{HISTORY_BUFFER}.{name}')


def _ordered_dict(budget: Budget, pairs: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict((checked_key(key), value) for key, value in pairs)


def _counter(budget: Budget, counts: Any) -> Counter[Any]:
    if type(counts) is not dict:
        raise TypeError('a Counter of no dict')
    return Counter(counts)


def _bytes(budget: Budget, text: Any = '', encoding: Any = 'latin1') -> bytes:
    """What `bytes` and `bytearray` are in older protocols: a string of their values."""
    if type(text) is bytes:
        return text
    if type(text) is not str or encoding not in ('latin1', 'latin-1'):
        raise TypeError('bytes of no string')
    budget.charge(len(text))
    return text.encode('latin1')


def _complex(budget: Budget, real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


def _set(budget: Budget, items: Any = ()) -> set[Any]:
    if type(items) is not list:
        raise TypeError('a set of no list')
    return {checked_key(item) for item in items}


def _size(budget: Budget, size: Any) -> tuple[int, ...]:
    return _sizes(size)


def _device(budget: Budget, kind: Any, *index: Any) -> str:
    if type(kind) is not str or not all(type(number) is int for number in index):
        raise TypeError('a device of no name')
    return ':'.join([kind, *map(str, index)])


# What REDUCE may call, and NEWOBJ make.
CALLS: dict[str, Callable[..., Any]] = {
    'torch._utils._rebuild_tensor': _tensor_v2,
    'torch._utils._rebuild_tensor_v2': _tensor_v2,
    'torch._utils._rebuild_tensor_v3': _tensor_v3,
    'torch._utils._rebuild_parameter': _parameter,
    'torch._utils._rebuild_parameter_with_state': _parameter,
    'torch._tensor._rebuild_from_type_v2': _tensor_of_type,
    'torch.Size': _size,
    'torch.device': _device,
    'numpy.dtype': _numpy_dtype,
    'collections.OrderedDict': _ordered_dict,
    'collections.Counter': _counter,
    '_codecs.encode': _bytes,
    'builtins.bytes': _bytes,
    'builtins.bytearray': _bytes,
    'builtins.complex': _complex,
    'builtins.set': _set,
    'builtins.getattr': _getattr,
}
for _core in ('core', '_core'):  # numpy 2 moved these; a file names them as the numpy did that wrote it
    CALLS[f'numpy.{_core}.multiarray.scalar'] = _numpy_scalar
    CALLS[f'numpy.{_core}.multiarray._reconstruct'] = _numpy_array
    CALLS[f'numpy.{_core}.numeric._frombuffer'] = _numpy_from_buffer
NEW: dict[str, Callable[..., Any]] = {HISTORY_BUFFER: _History}
