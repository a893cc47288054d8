"""A state of an optimizer either fits, and the next step is exact, or raises an error in one sentence."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, MultiStepLR, OptimWrapper
from torch import nn

from swin_backbone.workbench.resume.optimizer_state import load_optimizer, step_schedulers

OPTIMIZERS = {
    'SGD': dict(lr=0.1, momentum=0.9),
    'Adam fused': dict(lr=0.1, fused=True),
    'AdamW': dict(lr=0.1, amsgrad=True),
    'Adafactor': dict(lr=0.1),  # moments have other shapes than the parameters
}


def trained(name, steps=3, model=None):
    """Return a model of two layers after some steps, and the optimizer's wrapper."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [dict(params=list(layer.parameters())) for layer in model]
    wrapper = OptimWrapper(getattr(torch.optim, name.split()[0])(groups, **OPTIMIZERS[name]))
    for _ in range(steps):
        step(model, wrapper)
    return model, wrapper


def step(model, wrapper):
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    wrapper.step()


def weights_after(name, change):
    """Return the weights one step after a resume from a changed state, and one step on without a resume."""
    model, wrapper = trained(name)
    saved = copy.deepcopy(wrapper.state_dict())
    change(saved)
    resumed_model, resumed = trained(name, 0, copy.deepcopy(model))
    load_optimizer(resumed, saved)
    step(resumed_model, resumed)
    step(model, wrapper)
    return list(resumed_model.parameters()), list(model.parameters())


def stretch_moments(state):
    """Give moments another layout."""
    for name, value in state['state'][0].items():
        if value is not None and value.ndim:
            state['state'][0][name] = torch.stack([value, value * 7], -1)[..., 0]


FITTING = {
    'as it was': lambda state: None,
    'other settings': lambda state: [
        group.update(lr=float('nan'), betas=(2, 2), eps=-1, weight_decay=1e30, fused=True, foreach=True)
        for group in state['param_groups']
    ],
    'moments in another layout': stretch_moments,
}


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_a_resumed_step_equals_an_uninterrupted_one(record_fault, name):
    for case, change in FITTING.items():
        resumed, expected = weights_after(name, change)
        assert all(map(torch.equal, resumed, expected)), case
    record_fault('optimizer_states', len(FITTING))


@pytest.mark.parametrize(
    ('name', 'change', 'message'),
    [
        ('SGD', lambda state: state['param_groups'].pop(), 'of 2 parameters in 1 groups, and this training has 4 in 2'),
        ('AdamW', lambda state: state['param_groups'][0]['params'].pop(), 'of 3 parameters in 2 groups'),
    ],
)
def test_a_state_that_does_not_fit_is_refused(record_fault, name, change, message):
    with pytest.raises(ValueError, match=rf'^optimizer\b.*{message}'):
        weights_after(name, change)
    record_fault('optimizer_states')


def test_a_parameter_without_moments_begins_anew(record_fault):
    saved = copy.deepcopy(trained('SGD')[1].state_dict())
    del saved['state'][0]
    _, resumed = trained('SGD', 0)
    load_optimizer(resumed, saved)
    assert set(resumed.state_dict()['state']) == {1, 2, 3}
    record_fault('optimizer_states')


def test_a_loss_scaler_keeps_its_settings(record_fault):
    class CpuAmp(AmpOptimWrapper):
        def __init__(self, optimizer):
            OptimWrapper.__init__(self, optimizer)
            self.loss_scaler = torch.amp.GradScaler('cpu', growth_interval=3)

    wrapper = CpuAmp(trained('SGD')[1].optimizer)
    saved = copy.deepcopy(wrapper.state_dict())
    saved['loss_scaler'].update(scale=512.0, _growth_tracker=2, growth_factor=-1.0, growth_interval=0)
    own = wrapper.loss_scaler.state_dict()
    load_optimizer(wrapper, saved)
    assert wrapper.loss_scaler.state_dict() == {**own, 'scale': 512.0, '_growth_tracker': 2}
    record_fault('optimizer_states')


def test_schedules_step_without_a_warning(recwarn):
    """mmengine warns of a schedule that steps before its optimizer. Filters of warnings are those of all threads."""
    _, wrapper = trained('SGD', 0)
    schedule = MultiStepLR(wrapper, milestones=[2], by_epoch=False)
    filters = list(warnings.filters)
    runner = SimpleNamespace(train_loop=None, max_iters=9, param_schedulers=[schedule])
    step_schedulers(runner, 0, 3, {})
    assert wrapper.get_lr()['lr'] == [pytest.approx(0.01)] * 2
    assert (list(recwarn), list(warnings.filters)) == ([], filters)
