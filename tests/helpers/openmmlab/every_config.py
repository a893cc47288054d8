"""Try a Swin as the backbone of every config of mmdet and mmseg."""

import copy
import gc
import re
import traceback
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from helpers.openmmlab.breadth import build, pictures_and_truth, swapped, train_one_step
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.config_parts import iter_parts
from swin_backbone.openmmlab.errors import ConfigError

TRAINS, BUILDS, REFUSED, NOT_TRIED, FAILS = 'trains', 'builds', 'refused', 'not tried', 'fails'

SIDES = (64, 128, 256, 512)


class Outcome(NamedTuple):
    """The result for a config, with the reason for all results but `TRAINS`."""

    config: str
    result: str
    why: str = ''


def home(toolbox):
    """Return the folder with an installed toolbox's `configs/`."""
    return Path(find_spec(toolbox).origin).parent / '.mim'


@lru_cache
def folders(toolbox):
    """Return the config names of an installed toolbox by folder."""
    if find_spec(toolbox) is None:
        return {}
    root, names = home(toolbox) / 'configs', {}
    for path in sorted(root.rglob('*.py')):
        folder, _, name = str(path.relative_to(root)).partition('/')
        if '_base_' not in path.parts and name:
            names.setdefault(folder, []).append(name)
    return names


def outcomes(toolbox, folder):
    """Swap and build each config of a folder. Train a step if the set of layer types is new."""
    trained = set()
    for name in folders(toolbox)[folder]:
        path = f'{toolbox}::{folder}/{name}'
        try:
            yield Outcome(path, *outcome(path, trained))
        except Exception:  # go on with the next config
            yield Outcome(path, FAILS, traceback.format_exc())
        gc.collect()


def outcome(path, trained):
    """Return the result for a config, and the reason. `trained` collects the sets of layer types that trained."""
    try:
        cfg = read_config(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, (ImportError, FileNotFoundError)):
            raise
        return NOT_TRIED, _first_line(error.__cause__)
    if 'model' not in cfg:
        return NOT_TRIED, 'no model: a base config or a program'
    try:
        after = swapped(path)
    except ValueError as error:
        return REFUSED, _first_line(error)
    layers = frozenset(str(part['type']) for _, part in iter_parts(after.model, 'model'))
    untrained = ''
    if layers not in trained:
        untrained = toolboxes_fault(train, after, cfg) if 'optim_wrapper' in cfg else 'no optimizer'
        if untrained is None:
            trained.add(layers)
            return TRAINS, ''
    unbuilt = toolboxes_fault(build_only, after, cfg)
    return (BUILDS, untrained) if unbuilt is None else (NOT_TRIED, unbuilt)


def toolboxes_fault(attempt, after, before):
    """Return the error of an attempt if the original backbone gives an equal error. None: no error.

    Raises:
        Exception: the error of the attempt, if the original backbone works or fails differently.
    """
    try:
        attempt(copy.deepcopy(after), strict=True)
        return None
    except Exception as error:
        try:
            attempt(copy.deepcopy(before), strict=False)
        except Exception as own:
            if _kind(own) == _kind(error):
                return f'its own backbone fails too: {_first_line(own)}'
        raise error


def build_only(cfg, strict):
    build(cfg, initialise=False)


def train(cfg, strict):
    """Train for one step on pictures of 64 pixels, or larger pictures after an error."""
    for side in SIDES:
        try:
            _train(copy.deepcopy(cfg), side, strict)
        except Exception:
            if side == SIDES[-1]:
                raise
        else:
            return


def _kind(error):
    return type(error), re.sub(r'\d+', '', _first_line(error))


def _train(cfg, side, strict):
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper' and not torch.cuda.is_available():
        cfg.optim_wrapper = dict(
            {key: cfg.optim_wrapper[key] for key in cfg.optim_wrapper if key not in ('loss_scale', 'dtype')},
            type='OptimWrapper',
        )
    model = build(cfg, side=side, initialise=strict)  # no download of the old backbone's weights
    losses, idle = train_one_step(cfg, model, pictures_and_truth(cfg, side=side))
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    if strict:
        # A parameter without a gradient stops distributed training, unless the config allows unused parameters.
        assert not idle or cfg.get('find_unused_parameters'), idle
        assert all('norm' in name for name in idle), idle


def _first_line(error):
    """Return the first line of an error, without paths of the machine. An error without text gives the type."""
    lines = str(error).strip().split('\n')
    line = re.sub(r'/\S*/(?=configs/)', '', lines[0])
    return re.sub(r'\s+', ' ', re.split(r', the current sys.path|\. Please check', line)[0]) or type(error).__name__
