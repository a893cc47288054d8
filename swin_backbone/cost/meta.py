"""Models on the meta device: weights take no memory, and a forward computes shapes alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _LinspaceOnCpu(TorchFunctionMode):
    """Mode with `linspace` on the CPU: constructors read drop path rates from its numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.linspace:
            kwargs.setdefault('device', 'cpu')
        return func(*args, **kwargs)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Make a device the default for new modules and tensors; 'meta' has shapes and no data."""
    with torch.device(device), _LinspaceOnCpu():
        yield
