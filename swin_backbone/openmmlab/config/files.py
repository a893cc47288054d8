"""Finding a config: a path, or `package::folder/name.py` of an installed toolbox or of this package."""

import logging
from difflib import get_close_matches
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional, TextIO, Union

import torch
import yaml
from mmengine.config import Config
from mmengine.fileio import load, register_handler
from mmengine.fileio.handlers import YamlHandler
from mmengine.logging import print_log

from ...compat import distribution_names, find_base_configs_by, import_torchvision
from ..errors import ConfigError, sentence_of

OWN = 'swin_backbone'
TOOLBOXES = ('mmdet', 'mmseg', 'mmpretrain', 'mmrotate')
SIMILAR = 3  # names of configs that an error suggests
SUFFIXES = ('.py', '.yml', '.yaml', '.json')


class PlainLoader(yaml.SafeLoader):
    """Reads numbers, texts, lists, dicts, and the tuples that mmengine writes.

    It is the one in Python: that in C overflows its stack where a file is nested too deeply.
    """


PlainLoader.add_constructor(
    'tag:yaml.org,2002:python/tuple', lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


@register_handler(['yaml', 'yml'])
class PlainYamlHandler(YamlHandler):
    """mmengine's YAML, also of `_base_`, which by itself runs any constructor that a file names."""

    def load_from_fileobj(self, file: TextIO, **kwargs: Any) -> Any:
        return yaml.load(file, **{**kwargs, 'Loader': PlainLoader})


def register_prefixes() -> None:
    """Teach mmengine the prefixes that it cannot resolve by itself, in `_base_` as well as in `get_config`.

    It knows a package by the name of its distribution. Its table lacks this package, and has mmsegmentation for
    mmseg, which the OneDL forks distribute under another name: there the module's own name does. Nothing here asks
    mmengine what is installed, since its 0.10.7 needs pkg_resources for that, which setuptools no longer has.
    """
    names = distribution_names()
    names.setdefault(OWN, OWN)
    for module in TOOLBOXES:
        if find_spec(module) is not None and not _is_distributed(names.get(module, module)):
            names[module] = module
    find_base_configs_by(_find_base)


def read_config(path: Union[str, Path]) -> Config:
    """Read a config.

    Args:
        path: of a file, or `mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py`, and so for `mmseg::`,
            `mmpretrain::`, `mmrotate::` and `swin_backbone::`.

    Raises:
        ConfigError: (a ValueError) if the prefix is of a package that is not installed, there is no such file, it is of
            no kind that is read, or cannot be read.
    """
    use_torchvision()  # which mmpretrain and mmrotate import, and a config may import them
    prefix, colons, name = str(path).partition('::')
    file = Path(path)
    if colons:
        configs = configs_of(prefix)
        if configs is None:
            raise ConfigError(f'a config is a path or package::path with an installed package, got {prefix!r}')
        file = configs / name
    try:
        is_file = file.is_file()
    except ValueError as error:  # of a name with a NUL
        raise ConfigError(f'a config is a path, got {str(path)!r}: {error}') from error
    if not is_file:
        raise ConfigError(f'there is no config {str(path)!r}{_similar(str(path))}')
    if file.suffix not in SUFFIXES:
        raise ConfigError(f'a config is a file of one of the kinds {", ".join(SUFFIXES)}, got {str(path)!r}')
    try:
        if file.suffix != '.py' and not isinstance(held := load(str(file)), dict):
            raise ValueError(f'it takes settings by their names, got {type(held).__name__}')
        return Config.fromfile(str(file))
    except Exception as error:  # whatever a config in Python does, or a parser says
        raise ConfigError(f'the config {str(path)!r} cannot be read: {sentence_of(error)}') from error


def _similar(path: str) -> str:
    """Which configs have names like that of one that is not there.

    Of its package or folder; of this folder and every package, where it is a name alone.
    """
    prefix, colons, name = path.partition('::')
    wanted = Path(name if colons else path)
    found: dict[str, str] = {}
    for package in (prefix,) if colons else (OWN, *TOOLBOXES) if wanted.parent == Path() else ():
        configs = configs_of(package)
        if configs is None:
            continue
        for file in configs.glob('*/*.py'):
            if file.parent.name != '_base_':
                found.setdefault(file.stem, f'{package}::{file.relative_to(configs)}')
    if not colons:
        found.update({file.stem: str(file) for file in wanted.parent.glob('*.py')})
    begun = sorted((stem for stem in found if stem.startswith(wanted.stem)), key=len)
    stems = list(dict.fromkeys([*begun, *get_close_matches(wanted.stem, found, SIMILAR, 0.5)]))[:SIMILAR]
    return f'; did you mean {", ".join(found[stem] for stem in stems)}?' if stems else ''


def use_torchvision() -> None:
    """See `import_torchvision`; what is wrong with one that cannot be imported is said."""
    error = import_torchvision()
    if error is not None:
        print_log(
            f'torchvision is left out: it cannot be imported ({error}), most likely built for another torch than the '
            f'one here, {torch.__version__}. Exchange it or uninstall it; mmpretrain and mmrotate alone need it',
            'current',
            logging.WARNING,
        )


def _find_base(cfg_path: str) -> Optional[tuple[str, Optional[str]]]:
    """The path of a config that `_base_` names by a prefix, and the scope in which mmengine builds what it inherits.

    The prefix is the scope, but for this package's own, whose configs are in a toolbox's.
    """
    prefix, _colons, name = cfg_path.partition('::')
    configs = configs_of(prefix) if name else None
    if configs is None or not (configs / name).is_file():
        return None
    return str(configs / name), None if prefix == OWN else prefix


def configs_of(package: str) -> Optional[Path]:
    """The folder of configs that an installed package brings along; None if it is none of those, or not installed."""
    spec = find_spec(package) if package in (OWN, *TOOLBOXES, *distribution_names()) else None
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    if package == OWN and not (root / '.mim').exists():  # a checkout that was not installed
        return root.parent / 'configs'
    return root / '.mim' / 'configs'


def _is_distributed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
