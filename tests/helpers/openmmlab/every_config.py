"""Every config that mmdet and mmseg ship: what comes of it with a Swin in the place of its backbone."""

import copy
import gc
import re
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from helpers.openmmlab.breadth import build, pictures_and_truth, swapped, train_one_step
from swin_backbone.openmmlab.config.files import read_config

TRAINS, BUILDS, REFUSED, NOT_TRIED, FAILS = 'trains', 'builds', 'refused', 'not tried', 'fails'

SIDES = (64, 128, 256, 512)


class Outcome(NamedTuple):
    """What came of a config; `why` where it is refused, was not tried, or was built and cannot be trained."""

    config: str
    result: str
    why: str = ''


def home(toolbox):
    """From where an installed toolbox's configs name each other, as `configs/...`."""
    return Path(find_spec(toolbox).origin).parent / '.mim'


def folders(toolbox):
    """The folders of an installed toolbox's configs, each with the names of its configs."""
    if find_spec(toolbox) is None:
        return {}
    root, found = home(toolbox) / 'configs', {}
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
    untrained = ''
    if layers not in trained:
        untrained = toolboxes_fault(train, after, cfg) if 'optim_wrapper' in cfg else 'it has no optimizer'
        if untrained is None:
            trained.add(layers)
            return TRAINS, ''
    unbuilt = toolboxes_fault(build_only, after, cfg)
    return (BUILDS, untrained) if unbuilt is None else (NOT_TRIED, unbuilt)


def toolboxes_fault(attempt, after, before):
    """Why an attempt fails, where with its own backbone a config fails in the same way; None where it does not fail.

    Raises:
        Exception: what the attempt raised, if it is the swap's doing.
    """
    try:
        attempt(copy.deepcopy(after), strict=True)
        return None
    except Exception as error:
        try:
            attempt(copy.deepcopy(before), strict=False)
        except Exception as own:
            if _kind(own) == _kind(error):
                return f'with its own backbone neither: {_first_line(own)}'
        raise error


def build_only(cfg, strict):
    build(cfg, initialise=False)


def train(cfg, strict):
    """Train for a step on pictures of 64 pixels, or larger where those are too small."""
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
    """The first line of an error, without the places of this machine; where it has no text, its kind."""
    lines = str(error).strip().split('\n')
    line = re.sub(r'/\S*/(?=configs/)', '', lines[0])
    return re.sub(r'\s+', ' ', re.split(r', the current sys.path|\. Please check', line)[0]) or type(error).__name__
