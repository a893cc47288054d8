"""What the commands and `load` change in other packages of the process. `import swin_backbone` changes none of it."""

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from ..compat import import_torchvision
from ..openmmlab.compat import print_no_debug_messages
from ..openmmlab.config_files import read_yaml_without_code, register_prefixes
from ..openmmlab.panoptic import give_functions_to_mmdet


@cache
def prepare_process() -> None:
    """Prepare the process for configs, data and models of strangers. A second call changes nothing."""
    read_yaml_without_code()  # mmengine's reader runs Python code of a file
    register_prefixes()  # OneDL's mmengine does not find the toolboxes by `mmdet::` and `mmseg::`
    # rasterio's warning of every TIFF that is no map; a filter around each read would be one of all threads
    warnings.filterwarnings('ignore', message='Dataset has no geotransform')
    print_no_debug_messages()  # else mmengine prints a line for each missing optional package
    give_numba_a_cache()  # before mmdet: without a place for the cache, its import stops
    leave_out_broken_torchvision()  # before mmdet and mmpretrain, whose import stops beside a build for another torch
    give_functions_to_mmdet()  # else panoptic quality needs panopticapi, which is not on PyPI


def give_numba_a_cache() -> None:
    """Let numba cache in a temporary folder if the user's cache cannot be written, as in a read-only container.

    Without a place for the cache, an import of mmdet stops with "no locator available".
    """
    cache = Path(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'))
    while not cache.exists():
        cache = cache.parent
    if 'NUMBA_CACHE_DIR' not in os.environ and not os.access(cache, os.W_OK | os.X_OK):
        with suppress(OSError):  # nor is there a temporary folder
            # Only of this process, because numba runs what is cached.
            os.environ['NUMBA_CACHE_DIR'] = folder = tempfile.mkdtemp()
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def leave_out_broken_torchvision() -> None:
    """Hide a torchvision that cannot be imported, with a warning.

    mmengine writes versions to the log, and catches only an ImportError.
    """
    error = import_torchvision()
    if error is not None:
        sys.modules['torchvision'] = None  # type: ignore[assignment]  # its import raises ModuleNotFoundError now
        warnings.warn(
            f'torchvision is left out: it cannot be imported ({error}), most likely built for another torch than the '
            f'one here, {torch.__version__}. Replace or uninstall torchvision; only mmpretrain and mmrotate need it. '
            'SWIN_BACKBONE_STAND_INS=0 leaves torchvision as it is',
            stacklevel=2,
        )
