"""The ways to compute a layer: plain torch in `models`, and here attention, the compiled library and Triton."""

from .choose import BACKENDS

__all__ = ['BACKENDS']
