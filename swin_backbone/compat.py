"""What is private in other libraries and used here: each thing in one place, with what happens where it is missing.

A library is imported where it is asked for, so that what knows torch alone can import this file.
"""

from collections.abc import Callable
from typing import Any, Optional

# --- mmengine ---------------------------------------------------------------------------------------------------------

CONFIG_PATHS = '_get_cfg_path'
DISTRIBUTIONS = 'MODULE2PACKAGE'
SCHEMES = '_schemes'

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

    Missing: an empty table that nobody reads; `get_config` does as it does without this package.
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
