"""A training step of a whole model: where the step waits for a GPU.

Forward, losses, backward and all hooks count. Of this package, the guard of losses alone waits, and what stands in for
mmcv's compiled operators: tests/openmmlab/mmcv_ops/test_waits.py.
"""

import pytest
from helpers.kernels.waits import Device, Operators
from helpers.openmmlab.jobs import build_runner, load_config
from helpers.openmmlab.own_data import detection, make_own_data, segmentation

from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.resume.loops import ResumableEpochLoop, ResumableIterLoop


@pytest.mark.parametrize(
    ('words', 'loop', 'toolbox'), [(detection, ResumableEpochLoop, 'mmdet'), (segmentation, ResumableIterLoop, 'mmseg')]
)
def test_waits_are_the_toolboxes(tmp_path, monkeypatch, words, loop, toolbox):
    pytest.importorskip(toolbox)
    run_iter, steps = loop.run_iter, []

    def counted(*args):
        with Device() as device, Operators() as operators:
            run_iter(*args)
        steps.append(device.readers + operators.waits)

    monkeypatch.setattr(loop, 'run_iter', counted)
    config, _, *options = map(str, words(make_own_data(tmp_path / 'own')))
    cfg = load_config(config, str(tmp_path / 'work'), parse_options(options))
    cfg.update(val_dataloader=None, val_cfg=None, val_evaluator=None)
    cfg.default_hooks.checkpoint.interval = 9
    build_runner(cfg).train()
    for waits in steps:
        assert {'mmengine.logging.message_hub', 'mmengine.optim.optimizer.optimizer_wrapper'} < waits.keys()
        ours = {
            module: number
            for module, number in waits.items()
            if number and module.startswith('swin_backbone.') and '.mmcv_ops.' not in module
        }
        assert ours == {'swin_backbone.workbench.runner.hooks.nan_guard': 1}
