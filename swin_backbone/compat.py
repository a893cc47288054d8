"""Private parts of torch, and the import of a torchvision for another torch. `openmmlab/compat.py` has mmengine's.

Releases of torch may lack a part: the docstring states the behaviour without it.
"""

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from threading import Lock, RLock
from types import ModuleType
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor, nn

Function = TypeVar('Function', bound=Callable[..., Any])

# --- torch ------------------------------------------------------------------------------------------------------------


# Return whether hooks are registered for all modules of the process. Without torch's function: False.
has_global_hooks: Callable[[], bool] = getattr(nn.modules.module, '_has_any_global_hook', bool)


_functorch = getattr(torch._C, '_functorch', None)
# Return the innermost transform of `torch.func`, or None. Without torch's function: None.
peek_transform: Callable[[], Any] = getattr(_functorch, 'peek_interpreter_stack', lambda: None)
# Return whether a tensor is a batch of `torch.autograd.functional`. Without torch's function: False.
is_legacy_batched: Callable[[Tensor], bool] = getattr(_functorch, 'is_legacy_batchedtensor', lambda tensor: False)


# Return whether `torch.export` is at work. Without torch's function: False, as under torch.compile.
is_exporting: Callable[[], bool] = getattr(torch.compiler, 'is_exporting', bool)


def constant_when_compiled(function: Function) -> Function:
    """Let torch.compile call a function once, and keep the result as a constant.

    `torch.compiler.assume_constant_result` sets this mark too, but imports torch's compiler, which takes a second.
    Without torch's mark: torch.compile traces the function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def find_number(size: Any) -> Optional[int]:
    """Return a size as a number; None for a symbol of a graph.

    Under torch.compile with a torch without `has_static_value`, before 2.9, every size is returned as it is.
    """
    if not torch.compiler.is_dynamo_compiling():
        return None if isinstance(size, torch.SymInt) else size
    from torch.fx.experimental import symbolic_shapes

    symbols: Any = symbolic_shapes
    if not hasattr(symbols, 'has_static_value'):
        return size  # type: ignore[no-any-return]
    return symbols.guard_scalar(size) if symbols.has_static_value(size) else None


def hidden_from_compiler(function: Function) -> Function:
    """Let torch.compile break its graph at the calls of a function, and trace nothing inside.

    torch's function imports the compiler, which takes a second. Here a process that compiles nothing does not import
    it. Without torch's function: torch.compile traces the function.
    """
    disable = getattr(torch, '_disable_dynamo', None)
    hidden = function if disable is None else disable(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (hidden if 'torch._dynamo' in sys.modules else function)(*args, **kwargs)

    return call  # type: ignore[return-value]


def prepare_compiler() -> None:
    """Set up torch.compile of a part of a model.

    torch cannot split a graph with checkpointed blocks for the buckets of DistributedDataParallel: the part stays one
    graph. The graph of backward is compiled in the first forward, where an error can be caught. Without the second
    setting of torch, an error is raised in backward.
    """
    from torch._dynamo import config as tracer
    from torch._functorch import config as autograd

    tracer.optimize_ddp = False
    if hasattr(autograd, 'force_non_lazy_backward_lowering'):
        autograd.force_non_lazy_backward_lowering = True


def compile_calls(module: nn.Module, report: Callable[[Exception], None], **options: Any) -> None:
    """Compile the calls of a module in place, or run it uncompiled where torch cannot compile.

    Names of parameters and the class stay. Without torch's attribute of the compiled call: an error is raised.

    Args:
        report: called once, with the error of the compiler. Errors of the module itself are raised.
        options: of torch.compile.
    """
    module.compile(**options)
    compiled: Any = getattr(module, '_compiled_call_impl', None)
    if compiled is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # errors of compilers have no common type
            outputs = module._call_impl(*args, **kwargs)  # raises the error of a wrong input
            module._compiled_call_impl = None
            report(error)
            return outputs

    module._compiled_call_impl = call


def symbolic_views() -> AbstractContextManager[Any]:
    """Let `torch.export` record views of free lengths without checks of divisibility.

    torch cannot prove the checks, and would refuse a `Dim` with a range. Without torch's setting: torch checks. A
    strict export cannot trace the setting.
    """
    if not is_exporting() or torch.compiler.is_dynamo_compiling():
        return nullcontext()
    from torch.fx.experimental import _config

    config: Any = _config  # its methods are added at import
    return config.patch(backed_size_oblivious=True) if hasattr(config, 'backed_size_oblivious') else nullcontext()


def make_unpickler(stand_ins: Mapping[str, Any]) -> ModuleType:
    """Return torch's unpickler of `torch.load(weights_only=True)`, a `pickle_module`, with further globals.

    torch keeps further globals in a list of the process. The result is a second copy of torch's module, whose globals
    belong to the copy. Without torch's module: an error is raised.

    Args:
        stand_ins: the further globals by name; those of `torch.serialization.add_safe_globals` are not allowed.
    """
    from torch import _weights_only_unpickler as original

    spec: Any = importlib.util.spec_from_file_location(original.__name__, original.__file__)
    unpickler: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpickler)
    unpickler._get_user_allowed_globals = lambda: stand_ins
    unpickler.RuntimeError = pickle.UnpicklingError  # what torch 2.4 raises for a refused file, and later ones do not
    return unpickler  # type: ignore[no-any-return]


@constant_when_compiled  # torch.compile cannot trace `fp32_precision`
def allows_tf32() -> bool:
    """Return whether CUDA multiplies matrices of float32 in TF32.

    Since torch 2.9 there are two settings. Once `fp32_precision` is set, a read of the older `allow_tf32` raises.
    """
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision == 'tf32' if hasattr(matmul, 'fp32_precision') else bool(matmul.allow_tf32)


# Tracers that record operators of the library. Before torch 2.6 they cannot trace the search for a plan.
GRAPH_TRACERS = ('torch.compile', 'torch.export') if hasattr(torch.compiler, 'set_stance') else ()

# Return the active fake tensor mode, or None. Without torch's function: None.
find_fake_mode: Callable[[], Any] = getattr(torch._guards, 'active_fake_mode', lambda: None)


# Return the number of active `TorchDispatchMode`s (counters, fake tensors). Without torch's function: 1.
count_dispatch_modes: Callable[[], int] = getattr(torch._C, '_len_torch_dispatch_stack', lambda: 1)


# Return the number of active `TorchFunctionMode`s. Without torch's function: 0.
count_function_modes: Callable[[], int] = getattr(torch._C, '_len_torch_function_stack', int)


def changes_functions() -> bool:
    """Return whether a `TorchFunctionMode` is active besides those of default devices, `with torch.device(...)`.

    Without torch's function: True, if there is any mode.
    """
    mode_at: Callable[[int], Any] = getattr(torch._C, '_get_function_stack_at', lambda _: None)
    modes = [mode_at(number) for number in range(count_function_modes())]
    return any(type(mode).__name__ != 'DeviceContext' for mode in modes)


_attention_flags = Lock()


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Exclude cuDNN from the backends of `scaled_dot_product_attention`.

    With a mask, windows of N % 128 == 64 places (8x8) and a log-sum-exp below -88, cuDNN's backward gives NaN on H100
    and H200 (pytorch issue 196678; torch 2.11 to 2.13).

    The enabled backends are a setting of the process, so that threads take turns.
    """
    flags = torch.backends.cuda
    with _attention_flags:
        is_enabled = flags.cudnn_sdp_enabled()
        flags.enable_cudnn_sdp(False)
        try:
            yield
        finally:
            flags.enable_cudnn_sdp(is_enabled)


_torch_rng = RLock()


@contextmanager
def preserve_torch_rng(devices: Iterable[int] = ()) -> Iterator[None]:
    """Give torch's generators back their state at the end: that of the CPU, and those of CUDA devices.

    They are those of the process, so that threads take turns.
    """
    with _torch_rng, torch.random.fork_rng(devices):
        yield


# --- torchvision ------------------------------------------------------------------------------------------------------

# Operators that torchvision's Python code extends, and only its compiled extension declares.
TORCHVISION_OPERATORS = (
    'nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
    'qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
)


def import_torchvision() -> Optional[Exception]:
    """Import torchvision, also a build for another torch, and return the error if that fails.

    PyPI's build is for CUDA. Beside a CPU torch its compiled operators do not load, and the import stops with a
    RuntimeError, because two operators are not declared. Here the two are declared. torchvision's Python code then
    works, as timm and the transforms of mmpretrain and mmrotate need. The operators themselves stay missing.
    `SWIN_BACKBONE_STAND_INS=0` switches this off.
    """
    if os.environ.get('SWIN_BACKBONE_STAND_INS') == '0':
        return None
    error = _try_torchvision()
    if error is not None and 'torchvision::' in str(error):
        _declare_torchvision_operators()
        error = _try_torchvision()
    return error


def _try_torchvision() -> Optional[Exception]:
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return None
    except Exception as error:
        for name in [name for name in sys.modules if name.partition('.')[0] == 'torchvision']:
            del sys.modules[name]
        return error
    return None


@cache  # the declarations end with the library
def _declare_torchvision_operators() -> torch.library.Library:
    library = torch.library.Library('torchvision', 'FRAGMENT')
    for schema in TORCHVISION_OPERATORS:
        library.define(schema)
    return library
