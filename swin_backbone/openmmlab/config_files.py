"""Finding a config: a path, or `package::folder/name.py` of an installed toolbox or of this package."""

from pathlib import Path
from typing import Optional, Union

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.utils import is_installed

OWN = 'swin_backbone'


def register_prefixes() -> None:
    """Teach mmengine the prefixes that it cannot resolve by itself, in `_base_` as well as in `get_config`.

    It knows a package by the name of its distribution. Its table lacks this package, and has mmsegmentation for
    mmseg, which the OneDL forks distribute under another name: there the module's own name does.
    """
    MODULE2PACKAGE.setdefault(OWN, OWN)
    for module in ('mmdet', 'mmseg', 'mmpretrain'):
        if not is_installed(MODULE2PACKAGE[module]) and is_installed(module):
            MODULE2PACKAGE[module] = module
    find = Config._get_cfg_path

    def find_and_keep_scope(cfg_path: str, filename: str) -> tuple[str, Optional[str]]:
        """A prefix is also the scope in which mmengine builds what it inherits; these configs are in a toolbox's."""
        path, scope = find(cfg_path, filename)
        return path, None if scope == OWN else scope

    Config._get_cfg_path = staticmethod(find_and_keep_scope)


def read_config(path: Union[str, Path]) -> Config:
    """Read a config.

    Args:
        path: of a file, or `mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py`, and so for `mmseg::`,
            `mmpretrain::` and `swin_backbone::`.

    Raises:
        ValueError: if the prefix is of a package that is not installed.
        FileNotFoundError: if there is no such file.
    """
    prefix, colons, name = str(path).partition('::')
    return Config.fromfile(_configs_of(prefix) / name if colons else str(path))


def _configs_of(package: str) -> Path:
    """The folder of configs that an installed package brings along."""
    from importlib.util import find_spec

    spec = find_spec(package) if package in MODULE2PACKAGE else None
    if spec is None or spec.origin is None:
        raise ValueError(f'a config is a path or package::path with an installed package, got {package!r}')
    root = Path(spec.origin).parent
    if package == OWN and not (root / '.mim').exists():  # a checkout that was not installed
        return root.parent / 'configs'
    return root / '.mim' / 'configs'
