"""What a backbone moves through a GPU's memory and how many operators it calls, counted from shapes, without a GPU.

Layout: B batch, C channels, H W height and width.
"""

from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..compat import fake_tensors
from .operations import Traffic

# What autocast on CUDA computes in float32, and on a CPU in the dtype that comes.
IN_FLOAT32 = F.layer_norm, F.softmax, torch.softmax, Tensor.softmax


class Counted(NamedTuple):
    """Of one run, by the name of the operator."""

    calls: Counter[str]
    bytes: Counter[str]  # read and written, each argument and each result once a call


def count_traffic(model: nn.Module, shape_BCHW: tuple[int, ...], train: bool, dtype: torch.dtype) -> Counted:
    """Count a forward in eval mode, or a forward and backward in training mode, under CUDA's rules of autocast.

    The model's tensors stand in as shapes alone, so this takes seconds at any size. What an operator launches beyond
    its first kernel is not seen, and one that torch implements by several counts once. Run with TRITON_INTERPRET=1,
    without a GPU, a backbone with backend='triton' is counted with its kernels.

    `Eager` cannot be counted: its tables of indices need values.

    Args:
        shape_BCHW: of the images.
        dtype: of autocast; float32 for none.
    """
    model.train(train)
    with fake_tensors(), AsOnCuda(), torch.backends.mkldnn.flags(enabled=False):
        tensors = {name: _fake(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        x_BCHW = torch.empty(shape_BCHW)

        def run() -> None:
            with torch.autocast('cpu', dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(train):
                maps = functional_call(model, tensors, (x_BCHW,))
            if train:
                torch.autograd.backward(maps, [torch.empty_like(x) for x in maps])

        run()  # what is made once is not counted: tables of indices, and casts of weights that are kept
        for tensor in tensors.values():
            tensor.grad = None
        with Traffic() as traffic:
            run()
    return Counted(traffic.calls, traffic.bytes)


def _fake(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)


class AsOnCuda(TorchFunctionMode):
    """Autocast to float32 what CUDA's autocast does; the operators that it casts to half precision are the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in IN_FLOAT32 and torch.is_autocast_enabled('cpu'):
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))
