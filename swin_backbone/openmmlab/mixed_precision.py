"""Mixed precision of a whole model.

In bfloat16, torch's autocast alone is too coarse for a detector: on a CPU it computes softmax, sums and powers in
bfloat16, and mmcv's compiled operators take no bfloat16.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn

from ..checks import check_choice
from .layers.memory_format import takes_float32_maps

AMP_DTYPES = ('auto', 'float16', 'bfloat16')  # of `mixed_precision` and --amp

# Methods of a head behind its forward: losses, targets, softmax, boxes, NMS, masks.
BEHIND_FORWARD = ('loss_by_feat', 'loss_and_target', 'predict_by_feat', '_get_loss', '_get_predictions')

# TOOD samples at offsets, which bfloat16 rounds, by an operator of mmcv that takes only float32.
SAMPLING = 'deform_sampling'

Method = Callable[..., Any]


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """Train in `mixed_precision` of bfloat16, on any device.

    Losses are not scaled, because bfloat16 has the range of float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), mixed_precision(model, 'bfloat16'):
            yield


@HOOKS.register_module()
class MixedPrecisionHook(Hook):
    """Test in `mixed_precision`. `dtype` is the dtype of the context.

    After an error in a test, `close` ends the context; `SafeRunner` calls it.
    """

    priority = 'VERY_LOW'  # after hooks that copy the model or replace its weights

    def __init__(self, dtype: str = 'auto') -> None:
        self.dtype = dtype
        self._stack = ExitStack()

    def before_test_epoch(self, runner: Runner) -> None:
        self._stack.enter_context(mixed_precision(runner.model, self.dtype, keep_casts=True))

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self.close()

    def close(self) -> None:
        """End the context, if one is open."""
        self._stack.close()


@contextmanager
def mixed_precision(model: nn.Module, dtype: str = 'auto', keep_casts: bool = False) -> Iterator[None]:
    """Run a model in autocast while the context lasts; in bfloat16, its sensitive parts run in float32.

    Convolutions and linear layers compute in bfloat16. A head's forward returns float32, and everything behind the
    forward computes in float32: softmax and sigmoid, losses, assignment, boxes, NMS and masks. The table is in
    docs/explanation/mixed_precision.md. Several threads may use contexts of one model at a time.

    Args:
        model: a model of mmdet, mmseg or mmpretrain.
        dtype: 'bfloat16', 'float16', or 'auto' for bfloat16 on a CPU and float16 on a GPU. In float16 the context is
            only torch's autocast.
        keep_casts: keep the half-precision copy of each weight until the context ends, in place of a cast in each
            layer's call. Weights that change in the context then have no effect.

    Raises:
        ValueError: for float16 on a CPU, or another dtype.
    """
    device = next((x.device.type for x in model.parameters()), 'cpu')
    is_bfloat16 = check_amp(dtype, device) == 'bfloat16'
    methods = _run_methods_in_float32(model, device) if is_bfloat16 else nullcontext()
    with methods, torch.autocast(device, torch.bfloat16 if is_bfloat16 else torch.float16, cache_enabled=keep_casts):
        try:
            yield
        finally:
            if keep_casts:  # an autocast around this one would keep them
                torch.clear_autocast_cache()


def check_amp(dtype: str, device: str) -> str:
    """Return the dtype of `mixed_precision` on a kind of device."""
    check_choice('dtype', dtype, AMP_DTYPES)
    if dtype == 'float16' and device == 'cpu':
        raise ValueError("dtype 'float16' of mixed precision takes a GPU; a CPU takes 'bfloat16'")
    return dtype if dtype != 'auto' else 'bfloat16' if device == 'cpu' else 'float16'


_open_contexts: dict[nn.Module, tuple[int, ExitStack]] = {}  # number in all threads, and restoration, by model
_lock = threading.Lock()


@contextmanager
def _run_methods_in_float32(model: nn.Module, device: str) -> Iterator[None]:
    """Replace methods of a model's modules by methods in float32. The last context of the model restores them."""
    with _lock:
        contexts, restoration = _open_contexts.get(model) or (0, _replace_methods(model, device))
        _open_contexts[model] = contexts + 1, restoration
    try:
        yield
    finally:
        with _lock:
            contexts, restoration = _open_contexts.pop(model)
            if contexts > 1:
                _open_contexts[model] = contexts - 1, restoration
            else:
                restoration.close()


def _replace_methods(model: nn.Module, device: str) -> ExitStack:
    """Replace methods, and return a stack that restores them."""
    stack = ExitStack()
    compute_in_float32 = partial(wrap_outside_autocast, device=device)
    for module in model.modules():
        names = [name for name in BEHIND_FORWARD if callable(getattr(type(module), name, None))]
        methods: dict[str, Callable[[Method], Method]] = dict.fromkeys(names, compute_in_float32)
        if _takes_float32(module, device):
            methods['forward'] = compute_in_float32
        elif names:
            methods['forward'] = wrap_to_float32
        if callable(getattr(type(module), SAMPLING, None)):
            methods[SAMPLING] = compute_in_float32
        for name, change in methods.items():
            own_method = vars(module).get(name)
            if own_method is not None:  # accelerate.py, for example, sets a module's own forward
                setattr(module, name, change(own_method))
                stack.callback(setattr, module, name, own_method)
            else:  # a bound method: a deep copy of the module binds the method to the copy
                setattr(module, name, MethodType(change(getattr(type(module), name)), module))
                stack.callback(delattr, module, name)
    return stack


def _takes_float32(module: nn.Module, device: str) -> bool:
    """Return whether a layer computes in float32. mmcv's and torchvision's kernels for GPUs take no bfloat16."""
    if device == 'cpu':
        return takes_float32_maps(module)
    return hasattr(module, 'roi_layers') or type(module).__module__.startswith('mmcv.ops')


def wrap_outside_autocast(method: Method, device: str) -> Method:
    """Return a method that computes in float32, outside autocast."""

    @wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return method(*_convert_to_float32(args), **_convert_to_float32(kwargs))

    return outside


def wrap_to_float32(method: Method) -> Method:
    """Return a method with results in float32."""

    @wraps(method)
    def casting(*args: Any, **kwargs: Any) -> Any:
        return _convert_to_float32(method(*args, **kwargs))

    return casting


def _convert_to_float32(value: Any) -> Any:
    """Convert half precision to float32, also inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if type(value) is dict:
        return {key: _convert_to_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_convert_to_float32(item) for item in value)
    return value
