"""Private parts of mmengine, and its devices. OpenMMLab's last release and OneDL's release have these parts.

Functions import mmengine's parts, because a command without a training needs few of them.
"""

import logging
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, Optional

FindConfig = Callable[[str], Optional[tuple[str, Optional[str]]]]


def find_base_configs_by(find: FindConfig) -> None:
    """Make look-ups of `_base_ = 'package::...'` call `find` first, which returns (path, scope) or None."""
    from mmengine.config import Config

    mmengines = Config._get_cfg_path

    def find_config(cfg_path: str, filename: str) -> tuple[str, Optional[str]]:
        return find(cfg_path) or mmengines(cfg_path, filename)

    Config._get_cfg_path = staticmethod(find_config)


def list_checkpoint_loaders() -> dict[str, Callable[..., Any]]:
    """Return mmengine's loaders of checkpoints by the prefix of an address."""
    from mmengine.runner import CheckpointLoader

    return dict(CheckpointLoader._schemes)


def download_by(load: Callable[..., Any]) -> None:
    """Let the loaders of `open-mmlab://` and similar prefixes download their http addresses by `load`."""
    from mmengine.runner import checkpoint

    checkpoint.load_from_http = load


def print_no_debug_messages() -> None:
    """Silence messages of level DEBUG in mmengine's `print_log`.

    Without a logger, `print_log` prints messages of all levels, for example on missing optional packages.
    """
    from mmengine import logging as mmengine_logging

    print_all = mmengine_logging.print_log

    @wraps(print_all)
    def print_log(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_all(msg, logger, level)

    mmengine_logging.print_log = print_log
    warnings.filterwarnings('ignore', message='faster_coco_eval is not installed')  # a warning of each import of mmdet


def has_accelerator() -> bool:
    """Return whether mmengine finds a GPU or another device for training."""
    from mmengine.device import is_cuda_available, is_musa_available, is_npu_available

    return bool(is_cuda_available() or is_npu_available() or is_musa_available())
