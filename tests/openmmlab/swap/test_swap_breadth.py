"""A Swin in families of mmdet and mmseg: it trains and predicts, or is refused by the key.

test_swap_every_config.py trains every config of the toolboxes, and test_mixed_precision.py predicts in every family.
"""

import re

import pytest
import torch
from helpers.openmmlab.breadth import (
    PLACED,
    QUICK,
    REFUSED,
    build,
    pictures_and_truth,
    predict,
    swapped,
    train_one_step,
)

from swin_backbone import swap_backbone
from swin_backbone.openmmlab.config_files import read_config


@pytest.mark.parametrize('family', QUICK)
def test_swaps_trains_and_predicts(family):
    cfg = swapped(PLACED[family])
    model = build(cfg)
    losses, idle = train_one_step(cfg, model, pictures_and_truth(cfg))
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    # A parameter without a gradient stops distributed training, unless find_unused_parameters is set.
    assert not idle or cfg.get('find_unused_parameters'), idle
    assert all('norm' in name for name in idle), idle
    assert len(predict(cfg, model, pictures_and_truth(cfg, batch=1))) == 1


@pytest.mark.parametrize('family', REFUSED)
def test_refuses_by_the_key(family):
    path, key = REFUSED[family]
    cfg = read_config(path)
    before = cfg.to_dict()
    with pytest.raises(ValueError, match=rf'^{re.escape(key)}\W'):
        swap_backbone(cfg, 'swin-t', verbose=False)
    assert cfg.to_dict() == before
