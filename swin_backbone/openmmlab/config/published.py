"""Published weights of whole models, by the names of the models in metafiles."""

import re
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from mmengine.fileio import load

from ..errors import ConfigError
from .files import OWN, TOOLBOXES, configs_of, similar


def find_published(name: str) -> str:
    """Return the URL of a model's weights, from the metafiles of this package, then of the installed toolboxes.

    Args:
        name: file name of the config, without `.py`.

    Raises:
        ConfigError: (a ValueError) if no metafile has the name; the message has similar names.
    """
    names: list[str] = []
    for package in (OWN, *TOOLBOXES):
        configs = configs_of(package)
        for metafile in sorted(configs.glob('*/metafile.y*ml')) if configs else ():
            text = metafile.read_text(encoding='utf-8')
            names += re.findall(r'(?m)^ *- Name: (\S+_\S+)', text)
            if name in text:
                loaded: Any = load(str(metafile))
                for model in loaded.get('Models') or [] if isinstance(loaded, dict) else loaded:
                    if model['Name'] == name and model.get('Weights'):
                        return str(model['Weights'])
    near = similar(name, names)
    raise ConfigError(
        f'--weights takes the name of a model with published weights, got {name!r}'
        + (f'; did you mean {", ".join(near)}?' if near else '')
    )


def start_from(cfg: Config, checkpoint: Optional[str]) -> None:
    """Load only the weights of a checkpoint, by path or URL; None loads nothing.

    A config of a resumed training has `resume=True`.
    """
    cfg.update(load_from=checkpoint, resume=False)


def find_weights(weights: str) -> str:
    """Return the path or URL of a checkpoint: `weights` itself, or the published weights of this name.

    Raises:
        ConfigError: (a ValueError) if it is neither a URL nor a file nor a name; see `find_published`.
    """
    if '://' in weights or Path(weights).is_file():
        return weights
    if Path(weights).suffix or '/' in weights:
        raise ConfigError(f'--weights takes a checkpoint or the name of a published model, got no file {weights!r}')
    return find_published(weights)


def start_from_weights(cfg: Config, weights: str) -> None:
    """Begin a training with the weights of a whole model, in place of the backbone's ImageNet weights.

    Args:
        weights: see `find_weights`.

    Raises:
        ConfigError: see `find_weights`.
    """
    start_from(cfg, find_weights(weights))
    backbone = cfg.model.get('backbone')
    if backbone and 'Pretrained' in str(backbone.get('init_cfg')):
        backbone.init_cfg = None
