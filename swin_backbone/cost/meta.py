"""Models without memory for their weights, whose forward gives shapes and computes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _LinspaceOnCpu(TorchFunctionMode):
    """Constructors that read drop path rates off a linspace get one that holds numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.linspace:
            kwargs.setdefault('device', 'cpu')
        return func(*args, **kwargs)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Build modules and tensors on a device, by default; on 'meta' they have shapes and no data."""
    with torch.device(device), _LinspaceOnCpu():
        yield
