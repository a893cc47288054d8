"""Every config that mmdet and mmseg ship: what comes of it with a Swin in the place of its backbone."""

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from breadth import build, pictures_and_truth, swapped, train_one_step

from swin_backbone.openmmlab.config_files import read_config

TRAINS, BUILDS, REFUSED, NOT_TRIED = 'trains', 'builds', 'refused', 'not tried'


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
        yield Outcome(path, *outcome(path, trained))
        gc.collect()


def outcome(path, trained):
    try:
        cfg = read_config(path)
    except (ImportError, FileNotFoundError) as error:
        return NOT_TRIED, _first_line(error)
    if 'model' not in cfg:
        return NOT_TRIED, 'it has no model: it is what others inherit, or a program'
    try:
        cfg = swapped(path)
    except ValueError as error:
        return REFUSED, _first_line(error)
    layers = frozenset(types(cfg.model))
    model = build(cfg, initialise=layers not in trained)
    if layers in trained:
        return BUILDS, ''
    losses, idle = train_one_step(cfg, model, pictures_and_truth(cfg))
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    # A parameter without a gradient stops distributed training, unless the config says that there are some.
    assert not idle or cfg.get('find_unused_parameters'), idle
    assert all('norm' in name for name in idle), idle
    trained.add(layers)
    return TRAINS, ''


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
