"""Mixed precision on a CPU, for which mmengine has no optimizer wrapper."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from ...models.pyramid import SwinPyramid


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """The Swin of a model computes under bfloat16 autocast; its maps, and all behind it, are float32.

    What stands behind stays out: mmcv's compiled operators, RoIAlign among them, take no bfloat16 on a CPU. Losses are
    not scaled: bfloat16 has the range of float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Around a forward: see `OptimWrapper`."""
        with super().optim_context(model), ExitStack() as stack:
            for module in model.modules():
                if isinstance(module, SwinPyramid):
                    stack.enter_context(in_bfloat16(module))
            yield


@contextmanager
def in_bfloat16(backbone: nn.Module) -> Iterator[None]:
    """While this lasts, forwards of a backbone run under autocast."""
    autocast = torch.autocast('cpu', torch.bfloat16)

    def enter(_module: nn.Module, _images: Any) -> None:
        autocast.__enter__()

    def leave(_module: nn.Module, _images: Any, maps: Any) -> Any:
        autocast.__exit__(None, None, None)
        return maps and tuple(x.float() for x in maps)  # None if the forward failed

    handles = backbone.register_forward_pre_hook(enter), backbone.register_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
