"""What a report of a bug needs: versions, devices, and what computes on each.

Each part stands for itself: where one fails, its line says how, and the others are printed. So nothing but the standard
library is imported before it is needed.
"""

import importlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Callable

from .version import __version__

# Distributions by the module that they bring; where several are installed, they have overwritten each other.
STACK = {
    'mmengine': ('onedl-mmengine', 'mmengine', 'mmengine-lite'),
    'mmcv': ('onedl-mmcv', 'mmcv', 'mmcv-lite', 'mmcv-full'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmpretrain': ('onedl-mmpretrain', 'mmpretrain'),
    'mmrotate': ('onedl-mmrotate', 'mmrotate'),
}
TOOLBOXES = ('mmdet', 'mmseg', 'mmpretrain', 'mmrotate')
OTHERS = (
    *('torch', 'triton', 'torchvision', 'numpy', 'opencv-python', 'opencv-python-headless', 'safetensors'),
    *('pycocotools', 'matplotlib', 'onnx', 'onnxscript', 'onnxruntime', 'onnxruntime-gpu', 'openvino', 'nncf'),
    *('timm', 'transformers'),
)
# Environment variables that change what computes, or how much memory loading takes.
VARIABLES = ('ATEN_CPU_CAPABILITY', 'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'TRITON_INTERPRET')
PREFIX = 'SWIN_BACKBONE_'

Fact = tuple[str, str]


def print_info() -> None:
    """Print all there is to say, part by part, so that a crash shows in which part it was."""
    for title, facts in PARTS.items():
        print(title)
        for name, value in facts():
            print(f'  {name}: {value}', flush=True)


def _system() -> Iterator[Fact]:
    yield 'swin_backbone', f'{__version__}, in {_shorten(Path(__file__).parent)}'
    yield 'Python', f'{platform.python_version()} ({platform.python_implementation()}), in {_shorten(sys.prefix)}'
    yield 'system', platform.platform()
    yield (
        'environment variables',
        _join(
            f'{name}={value}'
            for name, value in sorted(os.environ.items())
            if name in VARIABLES or name.startswith(PREFIX)
        ),
    )


def _packages() -> Iterator[Fact]:
    yield 'stack', stack()
    for module, distributions in STACK.items():
        yield module, _join((f'{version} ({name})' for name, version in _installed(distributions)), 'not installed')
    yield 'others', _join(f'{name} {version}' for name, version in _installed(OTHERS))


def stack() -> str:
    """Which of the stacks is installed: 'onedl', 'openmmlab', 'lite' or 'none', and what is wrong with it."""
    found = {module: [name for name, _ in _installed(names)] for module, names in STACK.items()}
    twice = [names for names in found.values() if len(names) > 1]
    if twice:
        return (
            f'broken: {" and ".join(twice[0])} overwrite each other; uninstall both of them, then install one stack '
            'in an environment of its own'
        )
    if not found['mmcv']:
        return 'none: mmcv is not installed'
    mmcv = found['mmcv'][0]
    if mmcv == 'mmcv-lite':
        return 'lite'
    names = [name for names in found.values() for name in names]
    if len({name.startswith('onedl-') for name in names}) > 1:
        return f'mixed: {", ".join(names)}; install all of them from one stack, in an environment of its own'
    return 'onedl' if mmcv.startswith('onedl-') else 'openmmlab'


def _imports() -> Iterator[Fact]:
    yield 'mmcv operators', _try(_operators)
    if _installed(['torchvision']):
        yield 'torchvision', _try(_torchvision)
    for module in TOOLBOXES:
        if _installed(STACK[module]):
            yield module, _try(_import, module, 'imports')


def _operators() -> str:
    from .mmcv_ops import in_use, put_in_place

    put_in_place()
    return in_use()


def _torchvision() -> str:
    from .compat import import_torchvision

    error = import_torchvision()
    if error is not None:
        return f'left out, it cannot be imported: {error}'
    from torchvision.extension import _has_ops

    return (
        'imports'
        if _has_ops()
        else ('imports after swin_backbone, without its operators: it is built for another torch')
    )


def _import(module: str, answer: str) -> str:
    importlib.import_module(module)
    return answer


def _devices() -> Iterator[Fact]:
    yield 'cpu', _try(_processor)
    yield 'CUDA', _try(_cuda)


def _processor() -> str:
    try:
        from .devices import processor
    except ImportError:  # of torch or mmcv, as other lines say
        return f'{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs'
    return processor()


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        return 'torch is a build without CUDA'
    if not torch.cuda.is_available():
        return f'not available (torch is built for CUDA {torch.version.cuda})'
    names = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        gib = facts.total_memory / 2**30
        names.append(f'cuda:{index} {facts.name}, compute capability {facts.major}.{facts.minor}, {gib:.1f} GiB')
    tf32 = 'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'
    return f'{"; ".join(names)}; CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, TF32 {tf32}'


def _device_names() -> list[str]:
    try:
        import torch

        return ['cpu', *(f'cuda:{index}' for index in range(torch.cuda.device_count()))]
    except Exception:  # which the lines about the CPU say
        return ['cpu']


CAN_COMPUTE = 'can compute'


def _backends() -> Iterator[Fact]:
    """What `backend='auto'` takes, and which backends can compute, on each device."""
    yield 'compiled library', _try(_library)
    for device in _device_names():
        for dtype_name in ('float32', 'bfloat16'):
            yield f'auto on {device}, {dtype_name}', _try(_chosen_backend, device, dtype_name)
    for name in ('native', 'triton'):  # torch computes everything
        for device in _device_names():
            for dtype_name in ('float32', 'bfloat16'):
                yield f'{name} on {device}, {dtype_name}', _try(_why_not, name, device, dtype_name)


def _library() -> str:
    from .backends.native.library import load

    library, reason = load()
    if library is None:
        return str(reason)
    return f'computes by {library.isa}; was built with {", ".join(library.isas)}'


def _chosen_backend(device: str, dtype_name: str) -> str:
    """Return the backend that 'auto' chooses."""
    computes = [name for name in ('native', 'triton') if _why_not(name, device, dtype_name) == CAN_COMPUTE]
    return computes[0] if computes and not (computes == ['triton'] and device == 'cpu') else 'torch'


def _why_not(name: str, device: str, dtype_name: str) -> str:
    """Return why a backend computes no Swin-T on a device, or that it can compute."""
    import torch

    from .backends.choose import takes_triton, why_not_native
    from .windows.grid import Windows

    kind, x = torch.device(device).type, torch.empty(1, 7, 7, 96, device=device)
    with torch.autocast(kind, getattr(torch, dtype_name), enabled=dtype_name != 'float32'):
        if name == 'native':
            return why_not_native(x) or CAN_COMPUTE
        try:
            takes_triton('triton', x, x.new_empty(3, 49, 49), Windows(7, 7, (7, 7)), 0.0)
        except ValueError as error:
            return str(error).partition(': ')[2]
    return CAN_COMPUTE


PARTS: dict[str, Callable[[], Iterable[Fact]]] = {
    'system': _system,
    'packages': _packages,
    'imports': _imports,
    'devices': _devices,
    'backends': _backends,
}


def _installed(distributions: Iterable[str]) -> list[tuple[str, str]]:
    """Name and version of those that are installed."""
    found = []
    for name in distributions:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _try(ask: Callable[..., str], *of: Any) -> str:
    """The answer, or why there is none, in one line."""
    try:
        with _quiet():
            return ask(*of)
    except Exception as error:  # whatever a broken installation raises
        lines = str(error).strip().splitlines()
        return f'fails: {type(error).__name__}: {lines[0] if lines else ""}'


@contextmanager
def _quiet() -> Iterator[None]:
    """What libraries print when they are imported is no part of the answer."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


def _join(values: Iterable[str], otherwise: str = 'none') -> str:
    return ', '.join(values) or otherwise


def _shorten(path: Any) -> str:
    """A path without the name of the user."""
    home = str(Path.home())
    return '~' + str(path)[len(home) :] if str(path).startswith(home + os.sep) else str(path)
