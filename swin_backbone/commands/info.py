"""The facts of a bug report: versions, imports, devices and backends.

A fact that cannot be found is printed as an error, and the next facts follow. Therefore no other package is imported
at the top.
"""

import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from ..silence import silent
from ..version import __version__

# Distributions by module. Two installed distributions of one module overwrite each other.
STACK = {
    'mmengine': ('onedl-mmengine', 'mmengine', 'mmengine-lite'),
    'mmcv': ('onedl-mmcv', 'mmcv', 'mmcv-lite', 'mmcv-full'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
    'mmpretrain': ('onedl-mmpretrain', 'mmpretrain'),
    'mmrotate': ('onedl-mmrotate', 'mmrotate'),
}
OTHERS = (
    *('torch', 'triton', 'torchvision', 'numpy', 'opencv-python', 'opencv-python-headless', 'safetensors'),
    *('pycocotools', 'matplotlib', 'onnx', 'onnxscript', 'onnxruntime', 'onnxruntime-gpu', 'openvino', 'nncf'),
    *('timm', 'transformers'),
)
# Environment variables that change the backend, or the memory of loading
RELEVANT_VARIABLES = ('ATEN_CPU_CAPABILITY', 'CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'TRITON_INTERPRET')
PREFIX = 'SWIN_BACKBONE_'

Fact = tuple[str, str]


def print_info() -> None:
    """Print all facts, section by section; before a crash the section is printed."""
    with suppress(ImportError):
        from ..workbench.process import prepare_process

        prepare_process()
    for title, facts in SECTIONS.items():
        print(title)
        for name, value in facts():
            print(f'  {name}: {value}', flush=True)


def _list_system() -> Iterator[Fact]:
    yield 'swin_backbone', f'{__version__}, in {_shorten(Path(__file__).parents[1])}'
    yield 'Python', f'{platform.python_version()} ({platform.python_implementation()}), in {_shorten(sys.prefix)}'
    yield 'system', platform.platform()
    names = sorted(name for name in os.environ if name in RELEVANT_VARIABLES or name.startswith(PREFIX))
    yield 'environment variables', ', '.join(f'{name}={os.environ[name]}' for name in names) or 'none'


def _list_packages() -> Iterator[Fact]:
    yield 'stack', find_stack()
    for module, distributions in STACK.items():
        versions = [f'{version} ({name})' for name, version in _list_installed(distributions)]
        yield module, ', '.join(versions) or 'not installed'
    yield 'others', ', '.join(f'{name} {version}' for name, version in _list_installed(OTHERS))


def find_stack() -> str:
    """Return the installed stack: 'onedl', 'openmmlab', 'lite' or 'none', or a sentence about a broken mixture."""
    installed = {module: [name for name, _ in _list_installed(names)] for module, names in STACK.items()}
    doubled = [names for names in installed.values() if len(names) > 1]
    if doubled:
        return (
            f'broken: {" and ".join(doubled[0])} overwrite each other; uninstall both, then install one stack '
            'in a new environment'
        )
    if not installed['mmcv']:
        return 'none: mmcv is not installed'
    mmcv = installed['mmcv'][0]
    if mmcv == 'mmcv-lite':
        return 'lite'
    names = [name for names in installed.values() for name in names]
    if len({name.startswith('onedl-') for name in names}) > 1:
        return f'mixed: {", ".join(names)}; install one stack in a new environment'
    return 'onedl' if mmcv.startswith('onedl-') else 'openmmlab'


def _list_imports() -> Iterator[Fact]:
    yield 'mmcv operators', _try(_describe_operators)
    if _list_installed(['torchvision']):
        yield 'torchvision', _try(_import_torchvision)
    for module in list(STACK)[2:]:  # the toolboxes
        if _list_installed(STACK[module]):
            yield module, _try(_import, module)


def _describe_operators() -> str:
    from ..openmmlab.mmcv_ops import name_provider, put_in_place

    put_in_place()
    return name_provider()


def _import_torchvision() -> str:
    from torchvision.extension import _has_ops

    return 'imports' if _has_ops() else 'imports in the commands, without its operators: it is built for another torch'


def _import(module: str) -> str:
    importlib.import_module(module)
    return 'imports'


def _list_devices() -> Iterator[Fact]:
    yield 'cpu', _try(_describe_processor)
    yield 'CUDA', _try(_describe_cuda)


def _describe_processor() -> str:
    try:
        from ..devices import processor
    except ImportError:  # torch or mmcv is missing
        return f'{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs'
    return processor()


def _describe_cuda() -> str:
    import torch

    from ..compat import allows_tf32

    if torch.version.cuda is None:
        return 'torch is a build without CUDA'
    if not torch.cuda.is_available():
        return f'not available (torch is built for CUDA {torch.version.cuda})'
    names = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        gib = facts.total_memory / 2**30
        names.append(f'cuda:{index} {facts.name}, compute capability {facts.major}.{facts.minor}, {gib:.1f} GiB')
    tf32 = 'on' if allows_tf32() else 'off'
    return f'{"; ".join(names)}; CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, TF32 {tf32}'


def _list_backends() -> Iterator[Fact]:
    """Yield for each device and dtype the choice of `backend='auto'`, and why another backend cannot compute."""
    yield 'compiled library', _try(_describe_library)
    for dtype_name in ('float32', 'bfloat16'):
        yield f'Swin-T in training, {dtype_name}', _try(_explain_saved_blocks, dtype_name)
    devices = ['cpu']
    with suppress(Exception):  # the lines of the CPU print this error
        import torch

        devices += [f'cuda:{index}' for index in range(torch.cuda.device_count())]
    for device in devices:
        for dtype_name in ('float32', 'bfloat16'):
            yield f'{device}, {dtype_name}', _try(_describe_backend, device, dtype_name)


def _explain_saved_blocks(dtype_name: str) -> str:
    """Return which blocks save activations for the backward pass, and why."""
    import torch

    from ..kernels.native.saved_blocks import choose_saving_rule

    return choose_saving_rule(getattr(torch, dtype_name)).reason


def _describe_library() -> str:
    from ..kernels.native.library import load_library

    library, reason = load_library()
    if library is None:
        return str(reason)
    return f'computes by {library.isa}, int8 by {library.int8_products}; was built with {", ".join(library.isas)}'


def _describe_backend(device: str, dtype_name: str) -> str:
    """Return the backend that computes a Swin-T by default, with the reason for torch."""
    import torch

    from ..kernels.native.availability import find_reason_against
    from ..kernels.triton.availability import find_reason_against_attention
    from ..models import SwinBackbone
    from ..models.windows import Windows

    kind, x, windows = torch.device(device).type, torch.empty(1, 7, 7, 96, device=device), Windows(7, 7, (7, 7), (3, 3))
    attention = SwinBackbone(depths=(1,), num_heads=(3,), out_indices=(0,)).stages[0].blocks[0].attn.w_msa
    with torch.autocast(kind, getattr(torch, dtype_name), enabled=dtype_name != 'float32'):
        reason = find_reason_against(x) if kind == 'cpu' else find_reason_against_attention(attention, x, windows)
    if reason is not None:
        return f'torch: {reason}'
    return 'native' if kind == 'cpu' else 'triton'


SECTIONS: dict[str, Callable[[], Iterable[Fact]]] = {
    'system': _list_system,
    'packages': _list_packages,
    'imports': _list_imports,
    'devices': _list_devices,
    'backends': _list_backends,
}


def _list_installed(distributions: Iterable[str]) -> list[tuple[str, str]]:
    """Return names and versions of the installed distributions."""
    versions = []
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append((name, importlib.metadata.version(name)))
    return versions


def _try(find_fact: Callable[..., str], *arguments: Any) -> str:
    """Return a fact, or the error in one line, without the output of imported libraries."""
    try:
        with silent():  # warnings too, which are printed
            return find_fact(*arguments)
    except Exception as error:  # broken installations raise errors of any kind
        lines = str(error).strip().splitlines()
        return f'fails: {type(error).__name__}: {lines[0] if lines else ""}'


def _shorten(path: Any) -> str:
    """Return a path without the user's name."""
    home = str(Path.home())
    return '~' + str(path)[len(home) :] if str(path).startswith(home + os.sep) else str(path)
