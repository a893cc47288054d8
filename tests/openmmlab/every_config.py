"""Every config that mmdet and mmseg ship: what comes of it with a Swin in the place of its backbone."""

import copy
import gc
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from breadth import build, pictures_and_truth, swapped, train_one_step

from swin_backbone.openmmlab.config_files import read_config

TRAINS, BUILDS, REFUSED, NOT_TRIED, FAILS = 'trains', 'builds', 'refused', 'not tried', 'fails'


class Outcome(NamedTuple):
    """What came of a config; `why` where it is refused or was not tried."""

    config: str
    result: str
    why: str = ''


def folders(toolbox):
    """The folders of an installed toolbox's configs, each with the names of its configs."""
    if find_spec(toolbox) is None:
        return {}
    root = Path(find_spec(toolbox).origin).parent / '.mim' / 'configs'
    found = {}
    for path in sorted(root.rglob('*.py')):
        folder, _, name = str(path.relative_to(root)).partition('/')
        if '_base_' not in path.parts and name:
            found.setdefault(folder, []).append(name)
    return found


def outcomes(toolbox, folder):
    """Swap, build and train each config of a folder: for a step where its layers are others than of those before."""
    trained = set()
    for name in folders(toolbox)[folder]:
        path = f'{toolbox}::{folder}/{name}'
        try:
            yield Outcome(path, *outcome(path, trained))
        except Exception:  # the configs after it are tried all the same
            yield Outcome(path, FAILS, traceback.format_exc())
        gc.collect()


def outcome(path, trained):
    """What comes of a config; `trained` has the layers of those that trained, and gains this one's."""
    try:
        cfg = read_config(path)
    except (ImportError, FileNotFoundError) as error:
        return NOT_TRIED, _first_line(error)
    if 'model' not in cfg:
        return NOT_TRIED, 'it has no model: it is what others inherit, or a program'
    try:
        after = swapped(path)
    except ValueError as error:
        return REFUSED, _first_line(error)
    layers = frozenset(types(after.model))
    if layers in trained:
        build(after, initialise=False)
        return BUILDS, ''
    try:
        train(after, strict=True)
    except Exception as error:
        # Whether it is the swap's doing: the config with its own backbone is asked.
        try:
            train(cfg, strict=False)
        except Exception as own:
            return NOT_TRIED, f'with its own backbone neither: {_first_line(own)}'
        raise error
    trained.add(layers)
    return TRAINS, ''


def train(cfg, strict):
    """Train for a step on pictures of 64 pixels, or of 128 where those are too small for the layers."""
    for side in (64, 128):
        try:
            _train(copy.deepcopy(cfg), side, strict)
        except Exception:
            if side == 128:
                raise
        else:
            return


def _train(cfg, side, strict):
    if cfg.optim_wrapper.type == 'AmpOptimWrapper' and not torch.cuda.is_available():
        cfg.optim_wrapper = dict(
            {key: cfg.optim_wrapper[key] for key in cfg.optim_wrapper if key not in ('loss_scale', 'dtype')},
            type='OptimWrapper',
        )
    model = build(cfg, side=side, initialise=strict)  # the old backbone's weights are not downloaded
    losses, idle = train_one_step(cfg, model, pictures_and_truth(cfg, side=side))
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    if strict:
        # A parameter without a gradient stops distributed training, unless the config says that there are some.
        assert not idle or cfg.get('find_unused_parameters'), idle
        assert all('norm' in name for name in idle), idle


def types(node):
    """The types that are named in a model's config."""
    if isinstance(node, dict):
        if 'type' in node:
            yield str(node['type'])
        for value in node.values():
            yield from types(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from types(value)


def _first_line(error):
    return str(error).strip().split('\n')[0]
