"""Mixed precision of a whole model on a CPU, where torch's autocast alone is too coarse for a detector.

Its list of operations for float32 lacks softmax, sums and powers there, and mmcv's compiled operators take no bfloat16.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..layers.maps import takes_float32_maps

# What a head does with what its forward has computed: losses, targets, softmax, boxes, NMS, masks.
BEHIND_FORWARD = ('loss_by_feat', 'loss_and_target', 'predict_by_feat', '_get_loss', '_get_predictions')

# TOOD's: it samples at offsets, which bfloat16 rounds, by an operator that mmcv compiles for float32 alone.
SAMPLING = 'deform_sampling'

Method = Callable[..., Any]


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """A step of training in `mixed_precision`, for which mmengine has no wrapper on a CPU.

    Losses are not scaled: bfloat16 has the range of float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Around a forward: see `OptimWrapper`."""
        with super().optim_context(model), mixed_precision(model):
            yield


@HOOKS.register_module()
class MixedPrecisionHook(Hook):
    """Tests in `mixed_precision`."""

    priority = 'VERY_LOW'  # after those that copy the model, or exchange its weights

    def before_test_epoch(self, runner: Runner) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(mixed_precision(runner.model))

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self._stack.close()


@contextmanager
def mixed_precision(model: nn.Module) -> Iterator[None]:
    """While this lasts, the model runs under bfloat16 autocast on a CPU, but for what must stay in float32.

    Convolutions and linear layers compute in bfloat16. What a head's forward returns is float32, and so is all that
    follows: softmax and sigmoid, losses, assignment, boxes, NMS and masks. docs/explanation/mixed_precision.md has the
    table. One model may be in several of these at a time, in a thread each.

    Args:
        model: of mmdet, mmseg or mmpretrain. On a GPU it runs under torch's autocast alone, in float16.
    """
    device = next((x.device.type for x in model.parameters()), 'cpu')
    with ExitStack() as stack:
        if device == 'cpu':
            for module in model.modules():
                stack.enter_context(_methods_of(module))
        dtype = torch.bfloat16 if device == 'cpu' else torch.float16
        # Autocast's cache keeps the copies of weights until its end: around a training those of the first step.
        stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        yield


class _Replaced(NamedTuple):
    """The methods of a module that stand in the place of its own."""

    contexts: int  # that are open: of this thread, and of others
    names: list[str]
    before: dict[str, Method]  # that the module itself had, not its class


_replaced: WeakKeyDictionary[nn.Module, _Replaced] = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def _methods_of(module: nn.Module) -> Iterator[None]:
    """Methods in float32 in the place of a module's own: of a head what is behind its forward, else what it needs.

    The last context of the module puts its own back: threads may have one each.
    """
    with _lock:
        found = _replaced.get(module) or _replace(module)
        _replaced[module] = found._replace(contexts=found.contexts + 1)
    try:
        yield
    finally:
        with _lock:
            found = _replaced.pop(module)
            if found.contexts > 1:
                _replaced[module] = found._replace(contexts=found.contexts - 1)
            else:
                for name in found.names:
                    delattr(module, name)
                vars(module).update(found.before)


def _replace(module: nn.Module) -> _Replaced:
    behind = [name for name in BEHIND_FORWARD if callable(getattr(type(module), name, None))]
    methods: dict[str, Callable[[Method], Method]] = dict.fromkeys(behind, in_float32)
    if takes_float32_maps(module):
        methods['forward'] = in_float32
    elif behind:
        methods['forward'] = to_float32
    if callable(getattr(type(module), SAMPLING, None)):
        methods[SAMPLING] = in_float32
    before = {name: vars(module)[name] for name in methods if name in vars(module)}
    for name, change in methods.items():
        if name in before:  # accelerate, for one, gives a module a forward of its own
            setattr(module, name, change(before[name]))
        else:  # a method of this module, which a copy of the module has as its own
            setattr(module, name, MethodType(change(getattr(type(module), name)), module))
    return _Replaced(0, list(methods), before)


def in_float32(method: Method) -> Method:
    """A method outside autocast, whose tensors are float32."""

    @wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast('cpu', enabled=False):
            return method(*_float32(args), **_float32(kwargs))

    return outside


def to_float32(method: Method) -> Method:
    """A method whose results are float32."""

    @wraps(method)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return _float32(method(*args, **kwargs))

    return casting


def _float32(value: Any) -> Any:
    """Half precision becomes float32, in tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if type(value) is dict:
        return {key: _float32(one) for key, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_float32(one) for one in value)
    return value
