"""Automatic mixed precision: its dtype, and how to leave it out."""

from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import torch

from ...compat import constant_when_compiled


def autocast_dtype(device_type: str) -> Optional[torch.dtype]:
    """The dtype automatic mixed precision computes linear layers in; None where it is off, or the device has none."""
    if _has_autocast(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


@constant_when_compiled  # which torch.compile of torch 2.11 cannot trace
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Turn autocast off: operations keep the dtypes of their inputs."""
    is_on = _has_autocast(device_type) and torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if is_on else nullcontext()
