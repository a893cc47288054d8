"""Mixed precision of a whole model on a CPU.

torch's autocast alone is too coarse for a detector: on a CPU it computes softmax, sums and powers in bfloat16, and
mmcv's compiled operators take no bfloat16.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from types import MethodType
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..layers.maps import takes_float32_maps

# Methods of a head behind its forward: losses, targets, softmax, boxes, NMS, masks.
BEHIND_FORWARD = ('loss_by_feat', 'loss_and_target', 'predict_by_feat', '_get_loss', '_get_predictions')

# TOOD samples at offsets, which bfloat16 rounds, by an operator of mmcv for float32 alone.
SAMPLING = 'deform_sampling'

Method = Callable[..., Any]


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """Train in `mixed_precision`. mmengine has no such wrapper for a CPU.

    Losses are not scaled, because bfloat16 has the range of float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), mixed_precision(model):
            yield


@HOOKS.register_module()
class MixedPrecisionHook(Hook):
    """Test in `mixed_precision`."""

    priority = 'VERY_LOW'  # after hooks that copy the model or replace its weights

    def before_test_epoch(self, runner: Runner) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(mixed_precision(runner.model))

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self._stack.close()


@contextmanager
def mixed_precision(model: nn.Module) -> Iterator[None]:
    """Run a model in bfloat16 autocast on a CPU, and its sensitive parts in float32, while the context lasts.

    Convolutions and linear layers compute in bfloat16. A head's forward returns float32, and everything behind the
    forward computes in float32: softmax and sigmoid, losses, assignment, boxes, NMS and masks. The table is in
    docs/explanation/mixed_precision.md. Several threads may use contexts of one model at a time.

    Args:
        model: a model of mmdet, mmseg or mmpretrain. On a GPU the context is torch's autocast alone, in float16.
    """
    device = next((x.device.type for x in model.parameters()), 'cpu')
    dtype = torch.bfloat16 if device == 'cpu' else torch.float16
    methods = _methods_in_float32(model) if device == 'cpu' else nullcontext()
    # Autocast's cache would keep copies of the weights until the context ends, as of the first step of a training.
    with methods, torch.autocast(device, dtype, cache_enabled=False):
        yield


_open: dict[nn.Module, tuple[int, ExitStack]] = {}  # by model: number of contexts in all threads, and the restoration
_lock = threading.Lock()


@contextmanager
def _methods_in_float32(model: nn.Module) -> Iterator[None]:
    """Replace methods of a model's modules by methods in float32. The last context of the model restores them."""
    with _lock:
        contexts, restoration = _open.get(model) or (0, _replace_methods(model))
        _open[model] = contexts + 1, restoration
    try:
        yield
    finally:
        with _lock:
            contexts, restoration = _open.pop(model)
            if contexts > 1:
                _open[model] = contexts - 1, restoration
            else:
                restoration.close()


def _replace_methods(model: nn.Module) -> ExitStack:
    """Replace methods, and return a stack that restores them."""
    stack = ExitStack()
    for module in model.modules():
        behind = [name for name in BEHIND_FORWARD if callable(getattr(type(module), name, None))]
        methods: dict[str, Callable[[Method], Method]] = dict.fromkeys(behind, in_float32)
        if takes_float32_maps(module):
            methods['forward'] = in_float32
        elif behind:
            methods['forward'] = to_float32
        if callable(getattr(type(module), SAMPLING, None)):
            methods[SAMPLING] = in_float32
        for name, change in methods.items():
            before = vars(module).get(name)
            if before is not None:  # accelerate.py, for example, sets a module's own forward
                setattr(module, name, change(before))
                stack.callback(setattr, module, name, before)
            else:  # a bound method: a deep copy of the module binds the method to the copy
                setattr(module, name, MethodType(change(getattr(type(module), name)), module))
                stack.callback(delattr, module, name)
    return stack


def in_float32(method: Method) -> Method:
    """Return a method that computes in float32, outside autocast."""

    @wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast('cpu', enabled=False):
            return method(*_float32(args), **_float32(kwargs))

    return outside


def to_float32(method: Method) -> Method:
    """Return a method with results in float32."""

    @wraps(method)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return _float32(method(*args, **kwargs))

    return casting


def _float32(value: Any) -> Any:
    """Convert half precision to float32, also inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if type(value) is dict:
        return {key: _float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_float32(item) for item in value)
    return value
