"""A state of an optimizer either fits, and the next step is exact, or raises an error in one sentence."""

import copy

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from torch import nn

from swin_backbone.openmmlab.checkpointing.optimizer_state import fit_optimizer

OPTIMIZERS = {
    'SGD': dict(lr=0.1, momentum=0.9),
    'Adam': dict(lr=0.1),
    'Adam fused': dict(lr=0.1, fused=True),
    'AdamW': dict(lr=0.1, amsgrad=True),
    'AdamW foreach': dict(lr=0.1, foreach=True),
    'Adagrad': dict(lr=0.1),
    'RMSprop': dict(lr=0.1, momentum=0.9, centered=True),
    'Adafactor': dict(lr=0.1),
}

FAST = ('SGD', 'Adam fused', 'AdamW')
EACH = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]


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
    resumed.load_state_dict(fit_optimizer(resumed, saved))
    step(resumed_model, resumed)
    step(model, wrapper)
    return list(resumed_model.parameters()), list(model.parameters())


def entry(state):
    return state['state'][0]


def change_moments(make):
    def change(state):
        for name, value in entry(state).items():
            if isinstance(value, torch.Tensor) and value.ndim:
                entry(state)[name] = make(value)

    return change


def set_in_groups(**settings):
    return lambda state: [group.update(settings) for group in state['param_groups']]


def renumber(state):
    numbers = {0: 70, 1: 5, 2: 0, 3: 9}
    state['state'] = {numbers[key]: value for key, value in state['state'].items()}
    for group in state['param_groups']:
        group['params'] = [numbers[key] for key in group['params']]


REFUSED = {
    'moments of one number': change_moments(lambda value: torch.zeros(1)),
    'moments of half the precision': change_moments(lambda value: value.half()),
    'other moments': lambda state: state['state'].update({0: {'moment': torch.zeros(4, 3)}}),
    'a group less': lambda state: state['param_groups'].pop(),
    'a group more': lambda state: state['param_groups'].append(dict(params=[9])),
    'a parameter less': lambda state: state['param_groups'][0]['params'].pop(),
}  # fmt: skip
TAKEN = {
    'as it was': lambda state: None,
    'settings that kill': set_in_groups(lr=float('nan'), betas=(2, 2), eps=-1, momentum=7, weight_decay=1e30),
    'settings of how it is computed': set_in_groups(
        fused=True, foreach=True, maximize=True, differentiable=True, capturable=True, amsgrad=True, nesterov=True
    ),
    'settings that are missing': lambda state: state.update(
        param_groups=[dict(params=group['params']) for group in state['param_groups']]
    ),
    'moments in a larger memory': change_moments(lambda value: torch.stack([value, value * 7], -1)[..., 0]),
    'other numbers': renumber,
}


@pytest.mark.parametrize('name', EACH)
def test_a_state_that_does_not_fit_is_refused(record_fault, name):
    for case, change in REFUSED.items():
        with pytest.raises(ValueError, match=r'^optimizer\b') as error:
            weights_after(name, change)
        assert len(str(error.value)) < 300, case
    record_fault('optimizer_states', len(REFUSED))


@pytest.mark.parametrize('name', EACH)
def test_a_resumed_step_equals_an_uninterrupted_one(record_fault, name):
    for case, change in TAKEN.items():
        resumed, expected = weights_after(name, change)
        assert all(map(torch.equal, resumed, expected)), case
    record_fault('optimizer_states', len(TAKEN))


def test_counts_of_older_versions_are_numbers():
    resumed, expected = weights_after('AdamW', lambda state: [one.update(step=3) for one in state['state'].values()])
    assert all(map(torch.equal, resumed, expected))


def test_a_parameter_without_moments_begins_anew(record_fault):
    for empty in ({}, None, {'momentum_buffer': None}):
        _, wrapper = trained('SGD')
        saved = copy.deepcopy(wrapper.state_dict())
        saved['state'][0] = empty
        assert set(fit_optimizer(wrapper, saved)['state']) == {1, 2, 3}
    record_fault('optimizer_states', 3)


@pytest.mark.parametrize(
    ('before', 'now'), [('SGD', 'AdamW'), ('AdamW', 'SGD'), ('Adam', 'Adagrad'), ('Adam', 'AdamW')]
)
def test_another_optimizer(record_fault, before, now):
    """Adam and AdamW differ too: AdamW has amsgrad here, with a further moment."""
    with pytest.raises(ValueError, match='another optimizer made it'):
        fit_optimizer(trained(now, 0)[1], trained(before)[1].state_dict())
    record_fault('optimizer_states')


def test_several_optimizers(record_fault):
    def wrappers(steps):
        return OptimWrapperDict(a=trained('SGD', steps)[1], b=trained('AdamW', steps)[1])

    saved = wrappers(3).state_dict()
    assert set(fit_optimizer(wrappers(0), saved)) == {'a', 'b'}
    changes = [
        lambda state: state.pop('a'),
        lambda state: state.update(c=state['a']),
        lambda state: state.update(a=state['b']),
    ]
    for change in changes:
        changed = copy.deepcopy(saved)
        change(changed)
        with pytest.raises(ValueError, match=r'^optimizer'):
            fit_optimizer(wrappers(0), changed)
    record_fault('optimizer_states', len(changes))


def test_a_loss_scaler_keeps_its_settings(record_fault):
    class CpuAmp(AmpOptimWrapper):
        def __init__(self, optimizer):
            OptimWrapper.__init__(self, optimizer)
            self.loss_scaler = torch.amp.GradScaler('cpu', growth_interval=3)

    wrapper = CpuAmp(trained('SGD')[1].optimizer)
    saved = copy.deepcopy(wrapper.state_dict())
    saved['loss_scaler'].update(scale=512.0, _growth_tracker=2, growth_factor=-1.0, growth_interval=0)
    own = wrapper.loss_scaler.state_dict()
    assert fit_optimizer(wrapper, saved)['loss_scaler'] == {**own, 'scale': 512.0, '_growth_tracker': 2}
    record_fault('optimizer_states')


def test_an_optimizer_with_a_closure_keeps_its_state(record_fault):
    weight = nn.Parameter(torch.ones(3))

    def closure():
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    optimizer = torch.optim.LBFGS([weight], max_iter=2)
    optimizer.step(closure)
    saved = copy.deepcopy(optimizer.state_dict())
    assert set(fit_optimizer(OptimWrapper(optimizer), saved)['state'][0]) >= {'d', 't', 'func_evals'}
    record_fault('optimizer_states')
