"""Swin Transformer backbones for the OpenMMLab toolboxes. Importing this package registers them.

A command of this package registers after its arguments are parsed. Until then, only light modules are imported.
"""

import sys
from importlib import import_module
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .interface import *  # noqa: F403
    from .kernels.native.library import library_path as library_path


def register() -> None:
    """Import all names of the package, which registers the backbones.

    Raises:
        ImportError: without mmengine or mmcv.
    """
    interface = import_module('.interface', __name__)
    globals().update({name: getattr(interface, name) for name in ['__all__', *interface.__all__]})


def _is_command() -> bool:
    """Return whether the program is a file of tools/, `python -m swin_backbone` or `swin-backbone`.

    `sys.argv[0]` is '-m' while Python imports this file for `python -m`. A worker process of a command has no
    arguments to parse.
    """
    if not sys.argv or parent_process() is not None:
        return False
    if sys.argv[0] == '-m':
        return 'swin_backbone' in getattr(sys, 'orig_argv', ['swin_backbone'])
    program, package = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parent
    if program.name.startswith('swin-backbone'):
        return True
    tools = [(folder / 'tools').resolve() for folder in (package / '.mim', package.parent)]
    # Beside a copy of the package, tools/ may be of another project.
    return program.parent in tools and program.with_name('make_shapes_dataset.py').is_file()


if not _is_command():
    register()


def __getattr__(name: str) -> Any:
    """Import at first use: what configs name with this package's scope, for example 'swin_backbone.UPerHead'."""
    modules = {'library_path': 'kernels.native.library'}
    modules |= {'LoadPicture': 'workbench.data.load_picture'}
    modules |= {'SingleRoIExtractor': 'openmmlab.layers.roi_extractor', 'UPerHead': 'openmmlab.layers.uper_head'}
    if name not in modules:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'.{modules[name]}', __name__), name)
