"""A training that is killed and resumed has the bits of an uninterrupted training."""

import random
import signal
from pathlib import Path

import pytest
import torch
from helpers.openmmlab.toy_training import IMAGES, config, differing, run, run_ranks

EMA = dict(type='EMAHook', momentum=0.1, update_buffers=True)
BATCHES = IMAGES // 2  # an epoch


def send(number, after, **where):
    return dict(type='SendSignal', number=int(number), after=[after], **where)


@pytest.fixture
def check(tmp_path, record_fault):
    """Train without and with a kill -9, resume, and compare every bit at the end."""

    def check(killed_after, *, saved_after=None, ranks=1, resumed_with=None, hooks=(), **settings):
        def train(folder, more=(), **changes):
            cfg = config(tmp_path / folder, hooks=[*hooks, *more], **{**settings, **changes})
            codes = [run(cfg, log=log)] if ranks == 1 else run_ranks(cfg, ranks, log)
            return set(codes)

        def said():
            return '\n'.join(file.read_text()[-3000:] for file in tmp_path.glob('log*'))

        log = tmp_path / 'log'
        stop = [send(signal.SIGUSR1, saved_after)] if saved_after else []
        assert train('whole') == {0}, said()
        assert train('killed', [*stop, send(signal.SIGKILL, killed_after)]) == {-signal.SIGKILL}
        assert train('killed', resume=True, **(resumed_with or {})) == {0}, said()
        final = Path((tmp_path / 'whole' / 'last_checkpoint').read_text()).name
        assert differing(tmp_path / 'whole' / final, tmp_path / 'killed' / final) == []
        record_fault('resumes')

    return check


def test_by_epochs_in_the_middle_of_one_with_an_average(check):
    check(12, saved_after=10, epochs=2, hooks=[EMA])


def test_iterations_with_workers_within_an_accumulation(check):
    check(11, iterations=12, interval=4, workers=2, optim_wrapper__accumulative_counts=3)


def test_two_ranks_in_the_middle_of_an_accumulation(check):
    check(6, saved_after=5, ranks=2, epochs=2, optim_wrapper__accumulative_counts=3)


def test_a_drawn_seed_is_resumed(check, tmp_path, monkeypatch):
    monkeypatch.setattr(
        'mmengine.runner.utils.sync_random_seed', lambda: 18 if list(tmp_path.glob('killed/*.pth')) else 17
    )
    check(9, epochs=2, val=1, randomness=dict(seed=None))


@pytest.mark.slow
@pytest.mark.parametrize('ranks', [1, 2])
@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('amp', [False, True])
@pytest.mark.parametrize('loop', ['epochs', 'iterations', 'iterations of epochs'])
def test_killed_anywhere(check, loop, amp, workers, accumulate, ranks, request):
    where = random.Random(request.node.name)
    saved_after = where.choice([None, where.randrange(1, 3 * BATCHES - 2)])
    settings = dict(iterations=3 * BATCHES, interval=4) if 'iterations' in loop else dict(epochs=3)
    if loop == 'iterations of epochs':  # the sampler ends and begins again
        settings.update(train_dataloader__sampler__type='DefaultSampler')
    if amp:
        settings.update(optim_wrapper__type='CpuAmp')
    if ranks == 2 and 'epochs' in settings:  # two ranks halve the batches
        settings['epochs'] = 6
    check(
        where.randrange((saved_after or BATCHES) + 1, 3 * BATCHES),
        saved_after=saved_after,
        ranks=ranks,
        workers=workers,
        hooks=[EMA],
        optim_wrapper__accumulative_counts=accumulate,
        **settings,
    )


@pytest.mark.slow
def test_other_workers_than_before(check):
    check(11, saved_after=10, epochs=2, workers=2, resumed_with=dict(workers=0))


def test_an_older_checkpoint_is_resumed_with_a_sentence(tmp_path):
    assert run(config(tmp_path, epochs=1)) == 0
    checkpoint = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)
    del checkpoint['meta']['exact_resume']
    torch.save(checkpoint, tmp_path / 'epoch_1.pth')
    log = tmp_path / 'log'
    assert run(config(tmp_path, epochs=2, resume=True), log=log) == 0
    assert 'The checkpoint has no position in the data' in log.read_text()
    assert 'resumed epoch: 1, iter: 8' in log.read_text()


def test_an_epoch_that_is_resumed_goes_on_counting(tmp_path):
    stop = [send(signal.SIGTERM, 3)]
    assert run(config(tmp_path, epochs=1, hooks=stop)) == 75
    log = tmp_path / 'log'
    assert run(config(tmp_path, epochs=1, resume=True), log=log) == 0
    steps = [line.partition('Epoch(train)')[2].split('lr:')[0].strip() for line in log.read_text().splitlines()]
    assert ' is resumed with ' not in log.read_text()  # nothing changed
    assert [step for step in steps if step] == [f'[1][{n}/8]' for n in (4, 5, 6, 7, 8)]
