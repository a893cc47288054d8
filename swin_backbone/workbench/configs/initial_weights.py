"""The checkpoint that a run begins with: a file, an address, or published weights by the name of their model."""

import re
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from mmengine.fileio import load

from ...openmmlab.config_files import PACKAGE, TOOLBOXES, find_configs, find_similar
from ...openmmlab.errors import ConfigError


def set_load_from(cfg: Config, checkpoint: Optional[str]) -> None:
    """Let a run load only the weights of a checkpoint, by path or URL, in place; None loads nothing.

    The saved config of a resumed training has `resume=True`, which is set to False.
    """
    cfg.update(load_from=checkpoint, resume=False)


def find_weights(weights: str) -> str:
    """Return the path or URL of a checkpoint.

    Args:
        weights: a URL, a file, a folder of transformers, or the name of a model with published weights: the file name
            of its config, without `.py`. The metafiles of this package are searched first, then those of the installed
            toolboxes.

    Raises:
        ConfigError: (a ValueError) for any other text; the message has similar names.
    """
    if '://' in weights or Path(weights).expanduser().exists():
        return weights
    names: list[str] = []
    for package in (PACKAGE, *TOOLBOXES):
        configs = find_configs(package)
        for metafile in sorted(configs.glob('*/metafile.y*ml')) if configs else ():
            text = metafile.read_text(encoding='utf-8')
            names += re.findall(r'(?m)^ *- Name: (\S+_\S+)', text)
            if weights in text:
                loaded: Any = load(str(metafile))
                for model in loaded.get('Models') or [] if isinstance(loaded, dict) else loaded:
                    if model['Name'] == weights and model.get('Weights'):
                        return str(model['Weights'])
    similar_names = find_similar(weights, names)
    raise ConfigError(
        f'--weights takes a file, an address or the name of a model with published weights, got {weights!r}, '
        'which is none of them' + (f'; did you mean {", ".join(similar_names)}?' if similar_names else '')
    )


def set_initial_weights(cfg: Config, weights: str) -> None:
    """Begin a training with the weights of a whole model, in place of the backbone's ImageNet weights.

    Args:
        weights: see `find_weights`.

    Raises:
        ConfigError: see `find_weights`.
    """
    set_load_from(cfg, find_weights(weights))
    backbone = cfg.model.get('backbone')
    if backbone and 'Pretrained' in str(backbone.get('init_cfg')):
        backbone.init_cfg = None
