"""Find a config by a path, or by `package::folder/name.py` of an installed toolbox or of this package."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional, TextIO, Union

import yaml
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import YamlHandler

from .compat import find_base_configs_by
from .errors import ConfigError, describe_error

PACKAGE = 'swin_backbone'
TOOLBOXES = ('mmdet', 'mmseg', 'mmpretrain', 'mmrotate')
EXTRAS = dict(mmpretrain='cls', mmrotate='rotate')  # extras of setup.py by toolbox
MAX_SUGGESTIONS = 3  # similar names in an error
CONFIG_SUFFIXES = ('.py', '.yml', '.yaml', '.json')


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader in Python, with mmengine's tuples. The loader in C crashes on deeply nested files."""


PlainLoader.add_constructor(
    'tag:yaml.org,2002:python/tuple', lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


class PlainYamlHandler(YamlHandler):
    """mmengine's reader of YAML without constructors of arbitrary Python objects."""

    def load_from_fileobj(self, file: TextIO, **kwargs: Any) -> Any:
        return yaml.load(file, **{**kwargs, 'Loader': PlainLoader})


def read_yaml_without_code() -> None:
    """Let mmengine read YAML, also of `_base_`, as `PlainYamlHandler`."""
    register_handler(['yaml', 'yml'])(PlainYamlHandler)


def register_prefixes() -> None:
    """Register prefixes of configs with mmengine, for `_base_` and `get_config`.

    mmengine maps a prefix to the name of a distribution, but the names of OneDL's distributions differ. The name of the
    module serves too. mmengine 0.10.7 finds installed packages by pkg_resources, and new setuptools lack this module.
    """
    MODULE2PACKAGE.update({module: module for module in (PACKAGE, *TOOLBOXES) if find_spec(module) is not None})
    find_base_configs_by(_find_base)


def read_config(path: Union[str, Path]) -> Config:
    """Read a config.

    Args:
        path: a file, or `mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py`. Further prefixes are `mmseg::`,
            `mmpretrain::`, `mmrotate::` and `swin_backbone::`.

    Raises:
        ConfigError: (a ValueError) if the package is not installed, or the file is missing, damaged or no config.
    """
    prefix, colons, name = str(path).partition('::')
    file = Path(path)
    if colons:
        configs = find_configs(prefix)
        if configs is None:
            remedy = f'; `pip install -e ".[{EXTRAS[prefix]}]"` installs it' if prefix in EXTRAS else ''
            raise ConfigError(f'a config is a path or package::path with an installed package, got {prefix!r}{remedy}')
        file = configs / name
    if not file.is_file():
        raise ConfigError(f'there is no config {str(path)!r}{_suggest(str(path))}')
    try:
        return Config.fromfile(str(file))
    except Exception as error:  # Python code of a config raises errors of any kind
        raise ConfigError(f'the config {str(path)!r} cannot be read: {describe_error(error)}') from error


def add_custom_import(cfg: Config) -> None:
    """Let a config import this package."""
    imports = cfg.get('custom_imports') or {}
    names = imports.get('imports', [])
    names = [names] if isinstance(names, str) else list(names)
    if PACKAGE not in names:
        cfg.custom_imports = dict(imports, imports=[*names, PACKAGE])


def _suggest(path: str) -> str:
    """Return similar configs of the package or folder of `path`, or of all packages for a bare name, for an error."""
    prefix, colons, name = path.partition('::')
    file = Path(name if colons else path)
    names: dict[str, str] = {}
    for package in (prefix,) if colons else (PACKAGE, *TOOLBOXES) if file.parent == Path() else ():
        configs = find_configs(package) or Path()
        for config in configs.glob('*/*.py') if configs.name else ():
            if config.parent.name != '_base_':
                names.setdefault(config.stem, f'{package}::{config.relative_to(configs)}')
    if not colons:
        names.update({config.stem: str(config) for config in file.parent.glob('*.py')})
    similar = find_similar(file.stem, names)
    return f'; did you mean {", ".join(names[stem] for stem in similar)}?' if similar else ''


def find_similar(name: str, names: Iterable[str]) -> list[str]:
    """Return the most similar names: first the shortest names that begin so, then the closest names."""
    longer = sorted((other for other in names if name and other.startswith(name)), key=len)
    return list(dict.fromkeys([*longer, *get_close_matches(name, names, MAX_SUGGESTIONS, 0.5)]))[:MAX_SUGGESTIONS]


def _find_base(cfg_path: str) -> Optional[tuple[str, Optional[str]]]:
    """Return path and scope of a config with a prefix in `_base_`. The scope is the prefix of a toolbox, or None."""
    prefix, _colons, name = cfg_path.partition('::')
    configs = find_configs(prefix) if name else None
    if configs is None or not (configs / name).is_file():
        return None
    return str(configs / name), None if prefix == PACKAGE else prefix


def find_configs(package: str) -> Optional[Path]:
    """Return the folder of configs in an installed package; None if the package is unknown or not installed."""
    spec = find_spec(package) if package in (PACKAGE, *TOOLBOXES, *MODULE2PACKAGE) else None
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    if package == PACKAGE and not (root / '.mim').exists():  # a checkout without installation
        return root.parent / 'configs'
    return root / '.mim' / 'configs'
