"""What automatic mixed precision asks for, on any kind of device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import torch
from torch import Tensor


def is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on; there are devices (meta) that have none."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def cast_to_autocast(weight: Optional[Tensor]) -> Optional[Tensor]:
    """A weight in the dtype autocast computes in, so that it is cast once and not for every strip."""
    if weight is None or not is_autocast_on(weight.device.type):
        return weight
    return weight.to(torch.get_autocast_dtype(weight.device.type))


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a linear layer gives for x."""
    return torch.get_autocast_dtype(x.device.type) if is_autocast_on(x.device.type) else x.dtype


def without_autocast(device_type: str) -> AbstractContextManager:
    """Compute in the dtypes that are there."""
    return torch.autocast(device_type, enabled=False) if is_autocast_on(device_type) else nullcontext()
