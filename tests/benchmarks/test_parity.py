"""benchmarks/parity.py: trainings with both Swins agree, and the command reports differences."""

import json

import numpy as np
import pytest
from helpers.in_process import forget_instances, run_well
from helpers.openmmlab.own_data import detection, make_own_data, segmentation

from benchmarks import one_training, parity
from benchmarks.one_training import Spec, run_in_process
from swin_backbone.kernels.native.library import load_library
from swin_backbone.workbench.configs.cfg_options import parse_options

DROP_PATH = {'model.backbone.drop_path_rate': 0.3}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Function that trains up to 10 steps from fixed weights."""
    folder = tmp_path_factory.mktemp('parity')
    root = make_own_data(folder / 'data')
    configs = {'detector': detection(root), 'segmentor': segmentation(root)}

    def train(kind, **changed):
        config, _, *options = configs[kind]
        options = repr({**parse_options(options), **DROP_PATH})
        spec = dict(config=str(config), start=str(folder / f'{kind}.pth'), work_dir=str(folder / 'work'))
        spec.update(iterations=10, optimizer='sgd', cfg_options=options)
        if not (folder / f'{kind}.pth').exists():
            run_in_process(Spec(**{**spec, 'iterations': 0}))
        losses = run_in_process(Spec(**{**spec, **changed}))
        forget_instances()
        return losses

    return train


# A detector samples proposals, whose scores are nearly equal at first: in a few steps, rounding changes a sample. With
# seed 0, it does so in the second step: mmdet's own Swin with weights moved by one ulp differs from itself by 3.7e-5,
# as much as ours. Seed 3 has no such tie. In a segmentor, rounding grows ten times a step, from the sixth step on.
@pytest.mark.parametrize(('kind', 'iterations', 'seed'), [('detector', 3, 3), ('segmentor', 7, 0)])
def test_steps_have_the_losses_of_the_toolboxs_own_swin(trained, kind, iterations, seed):
    theirs = trained(kind, swin='theirs', iterations=iterations, seed=seed)
    assert len(set(theirs)) == iterations
    for backend in ('native', 'torch'):
        if backend != 'native' or load_library()[0] is not None:
            ours = trained(kind, backend=backend, iterations=iterations, seed=seed)
            assert ours == pytest.approx(theirs, rel=1e-5), backend


def compared(**changed):
    """Comparison with a final difference of 0.01 for controls and 0.005 for ours."""
    growth = 10 ** np.linspace(-7, -2, 60)
    losses = dict(theirs=np.ones(60), ours=1 + growth / 2, ulp=1 - growth, threads=1 + growth / 4)
    return parity.Comparison('a, sgd, float32', 0, {k: list(v) for k, v in {**losses, **changed}.items()})


@pytest.mark.parametrize(
    ('change', 'left'),
    [
        ({}, 0),
        (dict(ours=1 + 3 * 10 ** np.linspace(-7, -2, 60) * (np.arange(60) < 40)), 0),  # earlier by some iterations
        (dict(ours=np.where(np.arange(60) == 30, np.nan, 1.0)), 31),
        (dict(ours=np.where(np.arange(60) == 4, 1.01, 1.0)), 5),
        (dict(ours=1 + 3 * 10 ** np.linspace(-7, -2, 60)), 58),
    ],
)
def test_the_band(change, left):
    results = compared(**change)
    assert parity.iteration_out_of_band([results], results) == left


def test_controls_of_all_seeds_make_the_band():
    quiet, loud = compared(ulp=np.ones(60), threads=np.ones(60)), compared()
    assert parity.iteration_out_of_band([quiet], quiet)
    assert not parity.iteration_out_of_band([quiet, loud], quiet)
    other = compared()._replace(title='b, sgd, float32')
    assert parity.iteration_out_of_band([quiet, other], quiet)


def test_ones_own_data_take_the_place_of_the_configs(tmp_path):
    root = make_own_data(tmp_path / 'data')
    for settings in (dict(data=str(root)), dict(data=str(root / 'images'), annotations=str(root / 'train.json'))):
        spec = Spec(config=parity.DEMOS[0], start='', work_dir=str(tmp_path / 'work'), **settings)
        dataset = one_training._config(spec).train_dataloader.dataset
        assert str(root) in str(dataset)
        assert 'data/shapes' not in str(dataset)


@pytest.mark.slow
def test_the_command(tmp_path):
    root = make_own_data(tmp_path / 'data')
    config, *options = segmentation(root)
    options = ['--iterations', 3, '--seeds', 2, '--optimizers', 'adamw', '--out-dir', tmp_path / 'out', *options]
    run_well('benchmarks.parity', config, *options)
    written = json.loads((tmp_path / 'out' / 'parity.json').read_text())
    runs = [(one['title'].rsplit(', ')[-1], one['seed']) for one in written]
    assert runs == [('float32', 0), ('bfloat16', 0), ('bfloat16', 1)]
    assert (tmp_path / 'out' / 'parity.md').read_text().count('stays in the band') == 3
    assert (tmp_path / 'out' / 'parity.png').read_bytes().startswith(b'\x89PNG')
