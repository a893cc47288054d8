"""Private parts of other libraries that are used here, all in one place, each with what happens if it is missing.

mmengine is imported inside the functions, so that code which needs only torch can import this file.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from threading import Lock
from typing import Any, Optional, TypeVar

import torch
from torch import nn

Function = TypeVar('Function', bound=Callable[..., Any])

# --- torch ------------------------------------------------------------------------------------------------------------

# oneDNN's linear layer, which inductor calls: GELU is applied while a tile is in registers. Without it: `F.linear`.
onednn_linear: Any = getattr(torch.ops.mkldnn, '_linear_pointwise', None)


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of the process. Without torch's function: as if there were none."""
    ask = getattr(nn.modules.module, '_has_any_global_hook', None)
    return bool(ask and ask())


def is_transformed() -> bool:
    """Whether `torch.func` (grad, vmap, jvp, ...) or forward-mode AD is at work. Without torch's functions: no.

    It cannot be asked inside torch.compile, which sees what a transform does, and not the transform.
    """
    peek = getattr(getattr(torch._C, '_functorch', None), 'peek_interpreter_stack', None)
    level = getattr(torch.autograd.forward_ad, '_current_level', -1)
    return level >= 0 or (peek is not None and peek() is not None)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for a batch of them, under `torch.vmap` or as `torch.autograd.functional` vectorises.

    Without torch's functions: no.
    """
    ask = getattr(getattr(torch._C, '_functorch', None), 'is_legacy_batchedtensor', None)  # of torch.autograd
    return is_transformed() or bool(ask and ask(tensor))


# Whether `torch.export` is at work. Without torch's function: as if it were torch.compile.
is_exporting: Callable[[], bool] = getattr(torch.compiler, 'is_exporting', bool)


def constant_when_compiled(function: Function) -> Function:
    """Let torch.compile call a function while it compiles, and keep what it returned.

    `torch.compiler.assume_constant_result` sets the same mark, and imports torch's compiler for it: a second of every
    command's start. Without torch's mark: torch.compile traces the function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def symbolic_views() -> AbstractContextManager[Any]:
    """While `torch.export` records: views ask nothing about lengths that are free. Without torch's setting: they ask.

    They ask whether lengths divide each other. The answer is alike for all lengths, but torch cannot prove that, and
    refuses a `Dim` with a range for it. A strict export, which traces Python's bytecode, cannot trace the setting.
    """
    if not is_exporting() or torch.compiler.is_dynamo_compiling():
        return nullcontext()
    from torch.fx.experimental import _config

    config: Any = _config  # which gets its methods as it is imported
    return config.patch(backed_size_oblivious=True) if hasattr(config, 'backed_size_oblivious') else nullcontext()


# The mode in which operators give fake tensors now, or None. Without torch's function: None.
fake_mode: Callable[[], Any] = getattr(torch._guards, 'active_fake_mode', lambda: None)


_dispatch_modes: Callable[[], int] = getattr(torch._C, '_len_torch_dispatch_stack', lambda: 1)
_profiler_is_on: Callable[[], bool] = getattr(torch.autograd, '_profiler_enabled', lambda: True)


def operators_are_replaced() -> bool:
    """Whether a mode (`TorchDispatchMode`) gets each operator now: counters, fake tensors. Without torch's: yes."""
    return _dispatch_modes() > 0


def operators_are_watched() -> bool:
    """Whether a mode (`TorchDispatchMode`) or a profiler sees each operator now. Without torch's functions: yes."""
    return operators_are_replaced() or _profiler_is_on()


def foreach_copy(to: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source to its place: on CUDA one launch, whatever the dtypes. Without torch's function: one by one."""
    copy_all = getattr(torch, '_foreach_copy_', None)
    if copy_all is not None:
        copy_all(to, sources)
        return
    for place, source in zip(to, sources):
        place.copy_(source)


_attention_flags = Lock()


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Let `scaled_dot_product_attention` choose among the backends that are enabled, but cuDNN's.

    With a mask, windows of N % 128 == 64 places (8x8) and a log-sum-exp below -88 its backward gives NaN on H100 and
    H200 (pytorch issue 196678; torch 2.11 to 2.13). A torch without it (before 2.5) chooses as it does.

    What is enabled is a setting of the process, so that threads take turns.
    """
    flags = torch.backends.cuda
    with _attention_flags:
        if not getattr(flags, 'cudnn_sdp_enabled', bool)():
            yield
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        enabled = {
            SDPBackend.FLASH_ATTENTION: flags.flash_sdp_enabled(),
            SDPBackend.EFFICIENT_ATTENTION: flags.mem_efficient_sdp_enabled(),
            SDPBackend.MATH: flags.math_sdp_enabled(),
        }
        with sdpa_kernel([backend for backend, is_enabled in enabled.items() if is_enabled]):
            yield


# --- mmengine ---------------------------------------------------------------------------------------------------------

CONFIG_PATHS = '_get_cfg_path'
DISTRIBUTIONS = 'MODULE2PACKAGE'
SCHEMES = '_schemes'
HTTP_LOADER = 'load_from_http'

FindConfig = Callable[[str], Optional[tuple[str, Optional[str]]]]


def find_base_configs_by(find: FindConfig) -> None:
    """Have `_base_ = 'package::...'` ask `find` first, for the path and the scope of its registry, or None.

    Missing: mmengine resolves what it can, which is the toolboxes' own prefixes; `read_config` resolves all of them.
    """
    from mmengine.config import Config

    own = getattr(Config, CONFIG_PATHS, None)
    if own is None:
        return

    def find_or_ask_mmengine(cfg_path: str, filename: str) -> tuple[str, Optional[str]]:
        return find(cfg_path) or own(cfg_path, filename)

    setattr(Config, CONFIG_PATHS, staticmethod(find_or_ask_mmengine))


def distribution_names() -> dict[str, str]:
    """mmengine's table of the distributions that bring a module, by which `mmengine.hub.get_config` finds configs.

    Missing: an empty table, which has no effect; `get_config` works as without this package.
    """
    from mmengine.config import utils

    return getattr(utils, DISTRIBUTIONS, {})


def checkpoint_loaders() -> Optional[dict[str, Callable[..., Any]]]:
    """The functions by which mmengine loads checkpoints, by the prefix of their address.

    Missing: None. The caller cannot wrap them, and must have the whole process load nothing but weights.
    """
    from mmengine.runner import CheckpointLoader

    loaders = getattr(CheckpointLoader, SCHEMES, None)
    return None if loaders is None else dict(loaders)


def download_by(load: Callable[..., Any]) -> None:
    """Have the loaders of `open-mmlab://` and the like, which make an http address of theirs, load that by `load`.

    Missing: they download by themselves, and check nothing but a hash in the name.
    """
    from mmengine.runner import checkpoint

    if hasattr(checkpoint, HTTP_LOADER):
        setattr(checkpoint, HTTP_LOADER, load)


# --- torchvision ------------------------------------------------------------------------------------------------------

# What its import describes to torch, and only its compiled extension declares.
TORCHVISION_OPERATORS = (
    'nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
    'qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor',
)


def print_no_debug_messages() -> None:
    """Have mmengine's `print_log` print no message of level DEBUG; without a logger it prints all, of any level.

    So the toolboxes say on stdout which optional package they did not find.
    """
    from mmengine import logging as mmengine_logging

    print_all = mmengine_logging.print_log

    @wraps(print_all)
    def print_log(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_all(msg, logger, level)

    mmengine_logging.print_log = print_log
    # mmdet says so whenever it is imported, whatever the metric is.
    warnings.filterwarnings('ignore', message='faster_coco_eval is not installed')


def import_torchvision() -> Optional[Exception]:
    """Import torchvision where it is installed, also one that was built for another torch than the one here.

    Beside a CPU torch the build of PyPI, for CUDA, does not find its compiled operators, and its import stops with a
    RuntimeError where it describes two of them to torch. They are declared, and then all that is Python in it works:
    its transforms, which mmpretrain and mmrotate import. The operators themselves stay what they are: not there.

    Returns:
        What is wrong with a torchvision that cannot be imported all the same. It counts as not installed from now on:
        mmengine, noting versions in the log, expects an ImportError and no other.
    """
    error = _try_torchvision()
    if error is not None and 'torchvision::' in str(error):
        _declare_torchvision_operators()
        error = _try_torchvision()
    if error is not None:
        sys.modules['torchvision'] = None  # type: ignore[assignment]  # importing it is a ModuleNotFoundError now
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


@cache
def _declare_torchvision_operators() -> torch.library.Library:
    """What it declares goes with the library, which the cache keeps."""
    library = torch.library.Library('torchvision', 'FRAGMENT')
    for schema in TORCHVISION_OPERATORS:
        library.define(schema)
    return library
