"""Load checkpoints through mmengine, without running their code."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from mmengine.runner import CheckpointLoader

from ...checkpoints.errors import CheckpointError
from ...checkpoints.reading import are_checkpoints_trusted, read_checkpoint, read_open_file, trust_checkpoints
from ...openmmlab.compat import download_by, list_checkpoint_loaders

# Places of configs as text, which mmengine's Runner and Inferencer run as Python
CONFIG_KEYS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))


def install_checkpoint_loaders(unsafe: bool = False) -> None:
    """Let mmengine load the checkpoints of this process by this package's loaders, which execute nothing.

    Covered are `resume` and `load_from` of the Runner, and `init_cfg=dict(type='Pretrained')` of any module. (The OneDL
    release of mmengine falls back to unsafe loading if safe loading fails.) Loaders of 'open-mmlab://', 's3://' and
    further schemes stay. While they run, `torch.load` reads as `read_checkpoint`, and this package's loader downloads
    http addresses. Configs are left out: see `remove_configs`.

    Args:
        unsafe: let pickles run code, as --unsafe-load of the tools.
    """
    trust_checkpoints(unsafe)
    schemes = ('', 'file://', 'http://', 'https://')
    CheckpointLoader.register_scheme(schemes, load_from_file_or_address, force=True)
    download_by(load_from_file_or_address)
    for prefix, loader in list_checkpoint_loaders().items():
        if prefix not in schemes and not hasattr(loader, '__wrapped__'):
            CheckpointLoader.register_scheme(prefix, _make_safe(loader), force=True)


def load_from_file_or_address(filename: str, map_location: Any = None, **_: Any) -> Any:
    """Load a file or an address. mmengine's registry uses the name after `load_from_`.

    Raises:
        CheckpointError: see `read_checkpoint`; also if the file contains no dict.
    """
    checkpoint = remove_configs(read_checkpoint(filename, map_location))
    if not isinstance(checkpoint, dict):
        raise CheckpointError(
            f'checkpoint {filename!r}: a dict of weights was expected, it is a {type(checkpoint).__name__}'
        )
    return checkpoint


def remove_configs(checkpoint: Any) -> Any:
    """Remove the configs from a checkpoint, in place, because mmengine runs them as Python.

    With the tools' --unsafe-load they stay.
    """
    if are_checkpoints_trusted():
        return checkpoint
    for *path, name in CONFIG_KEYS:
        holder = checkpoint
        for key in path:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(name, None)
    return checkpoint


_replacing = threading.RLock()


def _make_safe(loader: Callable[..., Any]) -> Callable[..., Any]:
    """Let `torch.load` read as `read_checkpoint` does while a loader runs, also with weights_only=False.

    Other threads keep torch's function, and run these loaders in turn.
    """

    @wraps(loader)
    def load(*args: Any, **kwargs: Any) -> Any:
        def load_of_this_thread(*arguments: Any, **settings: Any) -> Any:
            is_own_thread = threading.get_ident() == thread
            return (_read_instead if is_own_thread else load_of_torch)(*arguments, **settings)

        with _replacing:
            thread = threading.get_ident()
            load_of_torch = torch.load
            torch.load = load_of_this_thread
            try:
                return remove_configs(loader(*args, **kwargs))
            finally:
                torch.load = load_of_torch

    return load


def _read_instead(f: Any, map_location: Any = None, *_: Any, **__: Any) -> Any:
    if isinstance(f, (str, os.PathLike)):
        return read_checkpoint(str(f), map_location)
    return read_open_file(f, 'FILE', map_location)
