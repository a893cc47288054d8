"""What ends a training leaves a checkpoint of the last step, and an interrupted validation is repeated."""

import os
import re
import signal

import pytest
from helpers.openmmlab.toy_training import Scores, Toy, config, differing, run, run_ranks, start, train_and_say, wait
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS, MODELS

RESUMABLE = 75
EMA = dict(type='EMAHook', momentum=0.1)


@HOOKS.register_module(force=True)
class Fail(Hook):
    """Raise an error at a stage, after a number of iterations."""

    def __init__(self, stage, after):
        def fail(runner, *args, **kwargs):
            if runner.iter == after:
                raise RuntimeError('of a test')

        setattr(self, stage, fail)


def files(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


def scores(*values):
    return dict(val=1, val_evaluator=dict(type='Scores', scores=values))


def stop_early(monitor='score', rule='greater'):
    return dict(type='EarlyStoppingHook', monitor=monitor, rule=rule, patience=1)


@pytest.mark.parametrize(
    ('length', 'name'),
    [(dict(epochs=8), 'epoch_2.pth'), (dict(iterations=8), 'iter_2.pth')],
    ids=['epochs', 'iterations'],
)
def test_early_stopping_leaves_a_checkpoint(tmp_path, length, name, record_fault):
    log = tmp_path / 'log'
    code = run(config(tmp_path, interval=10, hooks=[stop_early()], **length, **scores(1, 1)), log=log)
    assert code == 0, log.read_text()[-3000:]
    assert files(tmp_path) == [name]
    record_fault('ended_trainings')


@pytest.mark.parametrize(
    ('stage', 'after', 'hooks', 'left'),
    [
        ('before_train_epoch', 8, [], ['epoch_1.pth']),
        ('before_train_iter', 3, [], []),  # within a step, as far as the loop can see
        ('after_train_iter', 3, [], []),
        ('before_val_iter', 8, [], ['epoch_1.pth']),
        ('after_val_epoch', 8, [EMA], []),  # the model may have the averages
    ],
)
def test_an_error_between_steps_leaves_a_checkpoint(tmp_path, stage, after, hooks, left, record_fault):
    log = tmp_path / 'log'
    fail = dict(type='Fail', stage=stage, after=after)
    assert run(config(tmp_path, epochs=3, interval=10, hooks=[*hooks, fail], **scores(1, 1, 1)), log=log) == 1
    assert 'RuntimeError: of a test' in log.read_text()
    assert files(tmp_path) == left
    assert ('The last whole checkpoint is' in log.read_text()) == bool(left)
    record_fault('ended_trainings')


def test_an_error_of_the_data_leaves_a_checkpoint_that_resumes_exactly(tmp_path, record_fault):
    settings = dict(epochs=1, interval=10)
    broken = config(tmp_path / 'broken', train_dataloader__dataset__broken=[0], **settings)
    assert run(broken, log=tmp_path / 'log') == 1, (tmp_path / 'log').read_text()[-3000:]
    (left,) = files(tmp_path / 'broken')
    assert left.startswith('epoch_0_iter_')
    assert run(config(tmp_path / 'broken', resume=True, **settings)) == 0
    assert run(config(tmp_path / 'alone', **settings)) == 0
    assert differing(tmp_path / 'broken' / 'epoch_1.pth', tmp_path / 'alone' / 'epoch_1.pth') == []
    record_fault('ended_trainings')


BEST = dict(default_hooks__checkpoint__save_best='score', default_hooks__checkpoint__rule='greater')


def during_validation(after, number=signal.SIGTERM, **more):
    return dict(type='SendSignal', number=int(number), after=[after], stage='after_val_iter', **more)


@pytest.mark.parametrize('interval', [1, 9])
def test_an_interrupted_last_validation_is_repeated(tmp_path, interval, record_fault):
    log = tmp_path / 'log'
    settings = dict(epochs=1, interval=interval, **BEST)
    assert run(config(tmp_path, hooks=[during_validation(8)], **settings, **scores(1)), log=log) == RESUMABLE
    assert files(tmp_path) == ['epoch_1.pth']
    assert run(config(tmp_path, resume=True, **settings, **scores(1)), log=log) == 0, log.read_text()[-3000:]
    assert files(tmp_path) == ['best_score_epoch_1.pth', 'epoch_1.pth']
    assert 'The validation after iteration 8 is repeated.' in log.read_text()
    record_fault('ended_trainings')


def test_a_rate_that_follows_a_metric_resumes_exactly(tmp_path, record_fault):
    """A checkpoint is written before its validation, which lowers the rate."""
    plateau = dict(type='ReduceOnPlateauLR', monitor='score', rule='greater', patience=0, factor=0.1)
    settings = dict(epochs=3, param_scheduler=[plateau])
    whole, cut = tmp_path / 'whole', tmp_path / 'cut'
    assert run(config(whole, **settings, **scores(1, 1, 1))) == 0
    assert run(config(cut, hooks=[during_validation(16)], **settings, **scores(1, 1))) == RESUMABLE
    assert run(config(cut, resume=True, **settings, **scores(1, 1))) == 0
    assert differing(whole / 'epoch_3.pth', cut / 'epoch_3.pth') == []
    record_fault('resumes')


def test_ranks_stop_together_after_a_validation(tmp_path, record_fault):
    cfg = config(tmp_path, epochs=2, interval=9, hooks=[during_validation(4, rank=1)], **BEST, **scores(1, 2))
    assert run_ranks(cfg, log=tmp_path / 'log') == [RESUMABLE, RESUMABLE], (tmp_path / 'log0').read_text()[-3000:]
    assert 'best_score_epoch_1.pth' in files(tmp_path)
    record_fault('signals')


@HOOKS.register_module(force=True)
class AddMetric(Hook):
    priority = 'HIGH'

    def after_val_epoch(self, runner, metrics=None):
        metrics['scores'] = metrics['score']


def test_a_metric_of_a_users_hook_is_known(tmp_path):
    settings = dict(default_hooks__checkpoint__save_best='scores', default_hooks__checkpoint__rule='less')
    assert run(config(tmp_path, epochs=1, hooks=[dict(type='AddMetric')], **settings, **scores(1))) == 0
    assert 'best_scores_epoch_1.pth' in files(tmp_path)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(default_hooks__checkpoint__save_best='scores', default_hooks__checkpoint__rule='less'),
         'default_hooks.checkpoint.save_best takes a metric of the validation, score, got'),
        (dict(default_hooks__checkpoint__save_best='val_scores', default_hooks__checkpoint__rule='less'),
         'default_hooks.checkpoint.save_best takes a metric of the validation, score, got'),
        (dict(hooks=[stop_early('scores')]),
         'monitor of EarlyStoppingHook takes a metric of the validation, score, got'),
        (dict(param_scheduler=[dict(type='ReduceOnPlateauLR', monitor='scores', rule='less')]),
         'monitor of ReduceOnPlateauLR takes a metric of the validation, score, got'),
    ],
    ids=['save_best', 'val_', 'EarlyStoppingHook', 'ReduceOnPlateauLR'],
)  # fmt: skip
def test_a_wrong_metric_is_known_before_the_first_step(tmp_path, settings, message, record_fault):
    log = tmp_path / 'log'
    assert wait(start(train_and_say, config(tmp_path, epochs=2, **settings, **scores(1)), log=log)) == 1
    assert re.search(rf"{re.escape(message)} '(val_)?scores'", log.read_text())
    assert 'Epoch(train)' not in log.read_text()
    assert files(tmp_path) == []
    record_fault('bad_commands')


def test_a_loss_of_the_validation_is_known_with_its_hook_alone(tmp_path, record_fault):
    best = dict(default_hooks__checkpoint__save_best='val_loss', default_hooks__checkpoint__rule='less')
    log = tmp_path / 'log'
    assert wait(start(train_and_say, config(tmp_path, epochs=2, **best, **scores(1)), log=log)) == 1
    assert 'default_hooks.checkpoint.save_best names val_loss, which --val-loss computes' in log.read_text()
    assert files(tmp_path) == []
    record_fault('bad_commands')


@MODELS.register_module(force=True)
class PredictsSecond(Toy):
    """The first prediction of the second process is an error."""

    tried = False

    def val_step(self, data):
        self.tried, fails = True, not self.tried and os.environ['RANK'] == '1'
        if fails:
            raise RuntimeError('no prediction')
        return super().val_step(data)


@METRICS.register_module(force=True)
class ScoresSecond(Scores):
    """The first computation of the metrics is an error."""

    tried = False

    def compute_metrics(self, results):
        type(self).tried, fails = True, not self.tried
        if fails:
            raise RuntimeError('no metrics')
        return super().compute_metrics(results)


@pytest.mark.parametrize('kind', ['PredictsSecond', 'ScoresSecond'])
def test_a_trial_validation_fails_in_all_processes(tmp_path, kind):
    """A process that fails alone would leave the others waiting."""
    settings = {**scores(1), **BEST}
    if kind == 'ScoresSecond':
        settings['val_evaluator']['type'] = kind
    else:
        settings['model__type'] = kind
    assert run_ranks(config(tmp_path, epochs=1, **settings), log=tmp_path / 'log') == [0, 0]
    reason = 'no prediction' if kind == 'PredictsSecond' else 'no metrics'
    assert f'RuntimeError: {reason}' in (tmp_path / 'log0').read_text()
    assert 'best_score_epoch_1.pth' in files(tmp_path)
