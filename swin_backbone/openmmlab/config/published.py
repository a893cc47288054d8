"""Published weights of whole models, by the names of the models in metafiles."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Optional

from mmengine.config import Config
from mmengine.fileio import load

from ..errors import ConfigError
from .files import OWN, SIMILAR, TOOLBOXES, configs_of


class Published(NamedTuple):
    """An entry of a metafile.yml."""

    name: str
    weights: str  # URL
    scores: dict[str, float]  # published, by metric


def published_in(metafile: Path) -> list[Published]:
    """Return the models of a metafile with weights."""
    loaded: Any = load(str(metafile))
    models = loaded.get('Models') or [] if isinstance(loaded, dict) else loaded
    return [
        Published(model['Name'], model['Weights'], _scores(model.get('Results') or []))
        for model in models
        if model.get('Weights')
    ]


def find_published(name: str) -> Published:
    """Return the entry of a model in this package's metafiles, or else in an installed toolbox's.

    Args:
        name: of the config, without folder and `.py`.

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
                for model in published_in(metafile):
                    if model.name == name:
                        return model
    begun = sorted((other for other in names if name and other.startswith(name)), key=len)
    near = list(dict.fromkeys([*begun, *get_close_matches(name, names, SIMILAR, 0.5)]))[:SIMILAR]
    raise ConfigError(
        f'--weights takes the name of a model with published weights, got {name!r}'
        + (f'; did you mean {", ".join(near)}?' if near else '')
    )


def start_from(cfg: Config, checkpoint: Optional[str]) -> None:
    """Load the weights of a checkpoint, a path or URL, and not the state of its training; None loads none.

    A config that a resumed training saved has `resume=True`.
    """
    cfg.update(load_from=checkpoint, resume=False)


def find_weights(weights: str) -> str:
    """Return the path or URL of a checkpoint: `weights` itself, or the published ones of this name.

    Raises:
        ConfigError: (a ValueError) if it is neither a URL nor a file nor a name; see `find_published`.
    """
    if '://' in weights or Path(weights).is_file():
        return weights
    if Path(weights).suffix or '/' in weights:
        raise ConfigError(f'--weights takes a checkpoint or the name of a published model, got no file {weights!r}')
    return find_published(weights).weights


def start_from_weights(cfg: Config, weights: str) -> None:
    """Begin a training with the weights of a whole model; those of ImageNet are not loaded first.

    Args:
        weights: see `find_weights`.

    Raises:
        ConfigError: see `find_weights`.
    """
    start_from(cfg, find_weights(weights))
    backbone = cfg.model.get('backbone')
    if backbone and 'Pretrained' in str(backbone.get('init_cfg')):
        backbone.init_cfg = None


def _scores(results: Any) -> dict[str, float]:
    results = results if isinstance(results, list) else [results]
    return {metric: score for result in results for metric, score in (result['Metrics'] or {}).items()}
