"""What each kind of operation of a run costs: calls, bytes, time; and what the run costs at the least.

What a backbone moves through a GPU's memory is counted from shapes too, without a GPU.

Layout: B batch, C channels, H W height and width.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # its __all__ leaves it out
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from swin_backbone.backends.triton import attention as _attention  # noqa: F401 - defines the operators
from swin_backbone.compat import fake_tensors
from swin_backbone.cost.memory import AsOnCuda

# Of a block, each tensor of all tokens that goes through memory if everything between two GEMMs is fused, in widths of
# the map: norm and qkv 1 + 3, attention 3 + 1, projection and sum 2 + 1, norm, fc1 and GELU 1 + 4, fc2 and sum 5 + 1.
LEAST_WIDTHS = 22

# Operators that are not views to torch's schemas, and neither read nor write.
Shape = Sequence[int]
IDLE = 'aten::empty', 'aten::new_empty', 'aten::_unsafe_view', 'prim::'


class Operation(NamedTuple):
    """All calls of one operator of torch in one run."""

    name: str
    calls: int
    bytes: int  # read and written, each argument and each result once a call
    seconds: float  # on the device, without the operations it calls in turn


def operations(run: Callable[[], Any], device: torch.device, runs: int = 5) -> list[Operation]:
    """What a run is made of, the longest first.

    Args:
        run: is called two times more than `runs`.
        device: where it computes.
    """
    run()  # compiles, and fills caches
    with Traffic() as traffic:
        run()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == 'cuda' else [])]
    with profile(activities=activities) as profiled:
        for _ in range(runs):
            run()
    of_device = 'self_device_time_total' if device.type == 'cuda' else 'self_cpu_time_total'
    # On a GPU kernels are events themselves, beside the operators that launched them.
    events = [event for event in profiled.key_averages() if event.device_type == DeviceType.CPU]
    microseconds = Counter({event.key: getattr(event, of_device) for event in events})
    found = [
        Operation(name, calls, traffic.bytes[name], microseconds.pop(name, 0) / runs / 1e6)
        for name, calls in traffic.calls.items()
    ]
    # What operators call in turn, as the convolution of a library, and on a CPU what is around them.
    found.append(Operation('inside others', 0, 0, sum(microseconds.values()) / runs / 1e6))
    return sorted(found, key=lambda operation: -operation.seconds)


def count_flops(run: Callable[[], Any]) -> int:
    """Floating-point operations of a run, two a multiply-add: of GEMMs, convolutions and attention."""
    # oneDNN's own linear layer, on a CPU, is not among what the mode knows.
    with FlopCounterMode(display=False) as counter, torch.backends.mkldnn.flags(enabled=False):
        run()
    return int(counter.get_total_flops())


def least_bytes(maps: tuple[Tensor, ...], depths: tuple[int, ...], itemsize: int) -> int:
    """What the blocks of a forward read and write at the least, if all but GEMMs and attention is fused into them.

    Args:
        maps: the output of each stage.
        depths: blocks in each stage.
        itemsize: bytes of a number.
    """
    return sum(LEAST_WIDTHS * depth * x.numel() * itemsize for x, depth in zip(maps, depths))


class Traffic(TorchDispatchMode):
    """Calls and bytes of each operator that computes; views do not, nor does what only allocates or asks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and not name.startswith(IDLE):
            tensors = [*_tensors(args), *_tensors((kwargs or {}).values()), *_tensors([results])]
            self.calls[name] += 1
            self.bytes[name] += sum(x.numel() * x.itemsize for x in tensors)
        return results


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


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


@register_flop_formula(torch.ops.swin_backbone.attend_in_windows)
def _(qkv_shape: Shape, _padding: Any, bias_shape: Shape, *_: Any, out_shape: Sequence[Shape], **__: Any) -> int:
    return _flops(qkv_shape, bias_shape, lse_shape=out_shape[1], products=2)


@register_flop_formula(torch.ops.swin_backbone.attend_in_windows_backward)
def _(
    _grad: Any, qkv_shape: Shape, _padding: Any, bias_shape: Shape, _out: Any, lse_shape: Shape, *_: Any, **__: Any
) -> int:
    return _flops(qkv_shape, bias_shape, lse_shape, products=5)


def _flops(qkv_shape: Shape, bias_shape: Shape, lse_shape: Shape, products: int) -> int:
    """Of `products` of a window's (N, N) and (N, C)."""
    return 2 * products * lse_shape[0] * bias_shape[1] * bias_shape[2] * (qkv_shape[1] // 3)
