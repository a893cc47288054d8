"""The output of the tools while a runner is built."""

import sys
from pathlib import Path

import mmengine
import pytest
import torch
from helpers.openmmlab.jobs import build_runner
from helpers.openmmlab.toy_training import config, run
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import Runner
from mmengine.utils.dl_utils import collect_env

from swin_backbone.compat import import_torchvision
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.workbench.process import leave_out_broken_torchvision
from swin_backbone.workbench.resume.checkpoint_hook import WholeCheckpointHook
from swin_backbone.workbench.runner.safe_runner import INTERNAL_MESSAGES, LONG_MESSAGES, SafeRunner


@pytest.fixture
def built(tmp_path, capsys):
    """Build a runner, and return its output and the text of the log file."""

    def build(**more):
        runner = build_runner(config(tmp_path, epochs=1, experiment_name=f'{tmp_path.name}{len(more)}', **more))
        optimizer = dict(type='AdamW', lr=1e-3, weight_decay=0.1)
        runner.build_optim_wrapper(dict(optimizer=optimizer, paramwise_cfg=dict(bias_decay_mult=0.0)))
        return capsys.readouterr().out, Path(runner.logger.log_file).read_text()

    yield build
    MMLogger._instance_dict.clear()


def test_what_is_hundreds_of_lines_goes_to_the_file_alone(built):
    printed, log = built()
    for beginning in LONG_MESSAGES:
        assert beginning in log  # a record of this beginning is still written
        assert beginning not in printed
    assert 'environment, config, hooks, the rate of each parameter: see ' in printed
    assert len(printed.splitlines()) < 8


def test_log_level_debug_prints_it_too(built):
    printed, _log = built(log_level='DEBUG')
    assert all(beginning in printed for beginning in LONG_MESSAGES)


def test_a_training_prints_no_warning_of_mmengine_on_its_own_code(tmp_path):
    assert run(config(tmp_path, epochs=1), log=tmp_path / 'log') == 0
    (file,) = tmp_path.glob('*/*.log')
    assert any(beginning in file.read_text() for beginning in INTERNAL_MESSAGES)
    printed = (tmp_path / 'log').read_text()
    assert not [beginning for beginning in INTERNAL_MESSAGES if beginning in printed]
    assert 'UserWarning' not in printed  # of the schedules, on steps that were replaced


def test_a_runner_type_of_the_user_has_the_guards(tmp_path, record_fault):
    @RUNNERS.register_module(force=True)
    class OwnRunner(Runner):
        pass

    runner = build_runner(config(tmp_path, epochs=1, runner_type='OwnRunner'))
    assert isinstance(runner, OwnRunner)
    assert isinstance(runner, SafeRunner)
    with pytest.raises(ConfigError, match="subclass of mmengine's Runner, got 'FlexibleRunner'"):
        build_runner(config(tmp_path, epochs=1, runner_type='FlexibleRunner'))
    record_fault('bad_commands')


@HOOKS.register_module(force=True)
class FailInValidation(Hook):
    def after_val_iter(self, runner, *args, **kwargs):
        raise RuntimeError('of a hook')


def test_after_an_error_in_a_validation_the_model_has_its_own_step(tmp_path):
    runner = build_runner(config(tmp_path, epochs=1, val=1, hooks=[dict(type='FailInValidation')]))
    with pytest.raises(RuntimeError, match='of a hook'):
        runner.train()
    assert 'val_step' not in vars(runner.model)


BY_CLASS = pytest.param(
    CheckpointHook,
    marks=pytest.mark.skipif(mmengine.__version__ == '0.10.7', reason='mmengine 0.10.7 prints no config with a class'),
)


@pytest.mark.parametrize('kind', ['CheckpointHook', 'mmengine.CheckpointHook', 'mmdet.CheckpointHook', BY_CLASS])
def test_checkpoints_are_whole_however_the_hook_is_named(tmp_path, kind):
    runner = build_runner(config(tmp_path, epochs=1, default_hooks__checkpoint__type=kind))
    assert any(isinstance(hook, WholeCheckpointHook) for hook in runner.hooks)


@pytest.fixture
def install_torchvision(tmp_path, monkeypatch):
    """Install a torchvision with a given source."""

    def install(text):
        (tmp_path / 'torchvision').mkdir()
        (tmp_path / 'torchvision' / '__init__.py').write_text(text)
        for name in [name for name in sys.modules if name.partition('.')[0] == 'torchvision']:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, 'torchvision', None)  # monkeypatch restores the module after the test
        monkeypatch.delitem(sys.modules, 'torchvision')
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_broken_torchvision_is_named(install_torchvision):
    install_torchvision("raise RuntimeError('operator torchvision::nms does not exist')\n")
    with pytest.raises(RuntimeError, match='nms'):
        collect_env()
    with pytest.warns(UserWarning, match='torchvision is left out: .*operator torchvision::nms does not exist'):
        leave_out_broken_torchvision()
    assert 'TorchVision' not in collect_env()


DESCRIBES_ITS_OPERATORS = """
import torch
for name in ('nms', 'qnms'):
    if not hasattr(torch.ops.torchvision, name):
        raise RuntimeError(f'operator torchvision::{name} does not exist')
__version__ = 'for CUDA'
"""


def test_the_python_code_of_a_cuda_torchvision_works(install_torchvision):
    """The compiled extension does not load, and does not declare the operators."""
    declared = hasattr(torch.ops.torchvision, 'nms')  # by an earlier test, or by a real torchvision
    install_torchvision(DESCRIBES_ITS_OPERATORS)
    if not declared:
        with pytest.raises(RuntimeError, match='operator torchvision::nms does not exist'):
            collect_env()
    import_torchvision()
    assert collect_env()['TorchVision'] == 'for CUDA'
