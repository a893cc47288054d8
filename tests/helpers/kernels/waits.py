"""Count how often a program waits for a device, without a device: tensors of the CPU stand for those of a GPU."""

import sys
from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {'item', 'tolist', 'numpy', 'cpu', '__bool__', '__int__', '__float__', 'equal', 'allclose'}
SIZED_BY_VALUES = {'nonzero', 'bincount', 'masked_select', 'unique', 'repeat_interleave', '__getitem__', '__setitem__'}
OPERATORS = {'_local_scalar_dense', 'nonzero', 'equal', 'is_nonzero', 'masked_select', 'unique_dim', '_unique2'}
CALLED = ('torch', 'helpers', 'mmengine.dist')  # by the reader


def reader():
    """Return the name of the module that reads a value: of the innermost frame outside of `CALLED`."""
    frame = sys._getframe(1)
    while frame.f_globals['__name__'].startswith(CALLED):
        frame = frame.f_back
    return frame.f_globals['__name__']


class Operators(TorchDispatchMode):
    """Count operators that read values on a GPU, also inside operators and in a backward.

    Attributes:
        waits: calls, by reader.
    """

    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.partition('::')[2]
        by_mask = name.startswith('index') and any(
            x.dtype in (torch.bool, torch.uint8) for x in tree_leaves(args[1]) if isinstance(x, torch.Tensor)
        )
        self.waits[reader()] += name in OPERATORS or by_mask
        return function(*args, **(kwargs or {}))


class Device(TorchFunctionMode):
    """Every tensor is on a device, but copies by `cpu()`, factories without a device, and what is computed of them.

    Attributes:
        waits: calls that read values of the device, by name.
        readers: the same calls, by reader.
    """

    def __init__(self):
        super().__init__()
        self.waits, self.readers = Counter(), Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, '__name__', '')
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_host = all(getattr(x, 'on_host', False) for x in tensors)
        if function in (torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__):
            on_gpu = not on_host
            return on_gpu if function is torch.Tensor.is_cuda.__get__ else torch.device('cuda' if on_gpu else 'cpu')
        targets = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.device)]
        if not on_host and (name in READS or (name in SIZED_BY_VALUES and self._size_is_of_values(name, args, kwargs))):
            self.waits[name] += 1
            self.readers[reader()] += 1
        args = [torch.device('cpu') if isinstance(x, torch.device) else x for x in args]
        kwargs = {key: torch.device('cpu') if isinstance(x, torch.device) else x for key, x in kwargs.items()}
        result = function(*args, **kwargs)
        if targets:
            on_host = targets[0].type == 'cpu'
        if isinstance(result, torch.Tensor) and (name == 'cpu' or targets) and tensors and result is tensors[0]:
            result = result.clone()
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                x.on_host = on_host or name == 'cpu'
        return result

    @staticmethod
    def _size_is_of_values(name, args, kwargs):
        if name == 'repeat_interleave':
            return isinstance(args[1], torch.Tensor) and kwargs.get('output_size') is None
        if name in ('__getitem__', '__setitem__'):
            return any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1]))
        return True
