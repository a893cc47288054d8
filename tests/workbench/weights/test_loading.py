"""Checkpoints through the tools' Runner: `load_from` and `resume`."""

import os

import pytest
import torch
from helpers.checkpoints.origins import official_detector
from helpers.checkpoints.pickles import makes_folder
from helpers.models.small_models import randomised
from helpers.openmmlab import jobs
from helpers.openmmlab.toy_training import config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader

from swin_backbone import SwinBackbone
from swin_backbone.checkpoints import CheckpointError, trust_checkpoints
from swin_backbone.workbench.weights import loading


@MODELS.register_module(force=True)
class BackboneAndHead(BaseModel):
    def __init__(self, **backbone):
        super().__init__()
        self.backbone = SwinBackbone(arch='nano', **backbone)
        self.head = torch.nn.Linear(256, 1)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return {'loss': self.head(self.backbone(torch.stack(inputs))[-1].mean((2, 3))).mean()}


@pytest.fixture
def schemes():
    """Return mmengine's own loaders, and restore them after the test."""
    before = dict(CheckpointLoader._schemes)
    yield before
    CheckpointLoader._schemes = before
    trust_checkpoints(False)


def build_runner(work_dir, unsafe_load=False, iterations=1, **settings):
    cfg = config(
        work_dir, iterations=iterations, model__type='BackboneAndHead',
        optim_wrapper__optimizer__lr=0.0, experiment_name=f'loading{id(object())}', **settings,
    )  # fmt: skip
    return jobs.build_runner(cfg, unsafe_load=unsafe_load)


def test_load_from_takes_any_origin_and_resizes_windows_before_an_average(tmp_path, schemes, capsys):
    source = randomised(False)
    torch.save(official_detector(source.state_dict()), tmp_path / 'weights.pth')
    runner = build_runner(
        tmp_path, load_from=str(tmp_path / 'weights.pth'), model__window_size=12, hooks=[dict(type='EMAHook')]
    )
    runner.train()
    assert f'Loaded {tmp_path}/weights.pth (microsoft/Swin-Transformer' in capsys.readouterr().out
    name = 'stages.0.blocks.0.attn.w_msa.relative_position_bias_table'
    table = source.state_dict()[name].t().view(1, 2, 13, 13)
    expected = torch.nn.functional.interpolate(table, size=(23, 23), mode='bicubic').view(2, -1).t()
    assert torch.equal(runner.model.backbone.state_dict()[name], expected)
    averaged = torch.load(tmp_path / 'iter_1.pth', weights_only=False)['state_dict']
    torch.testing.assert_close(averaged[f'backbone.{name}'], expected)


def test_the_toolboxes_own_swin_is_left_to_the_runner(tmp_path, schemes):
    swin = pytest.importorskip('mmdet.models.backbones.swin', reason='mmdet is not installed').SwinTransformer
    model = torch.nn.ModuleDict({'backbone': swin(embed_dims=32, num_heads=(1, 2, 4, 8), depths=(1, 1, 1, 1))})
    weights = {key: torch.ones_like(value) for key, value in model.state_dict().items()}
    torch.save({'state_dict': weights}, tmp_path / 'weights.pth')
    runner = build_runner(tmp_path)
    runner.model = model
    runner.load_checkpoint(str(tmp_path / 'weights.pth'))
    assert model['backbone'].norm0.bias.all()


def test_nothing_loaded_at_all_is_an_error(tmp_path, schemes):
    torch.save({'state_dict': {'conv1.weight': torch.ones(1)}}, tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=r'weights\.pth.*no weight of a Swin Transformer'):
        build_runner(tmp_path, load_from=str(tmp_path / 'weights.pth')).train()


def doors(path):
    """Return the settings of a training that reads a checkpoint, by the way in."""
    pretrained = dict(type='Pretrained', checkpoint=str(path))
    return {
        'load_from': dict(load_from=str(path)),
        'resume': dict(load_from=str(path), resume=True),
        'auto': dict(resume=True),
        'init_cfg': dict(model__init_cfg=pretrained),
    }


@pytest.fixture(params=[False, True])
def unsafe_load(request, schemes):
    return request.param


@pytest.mark.parametrize('door', ['load_from', 'resume', 'auto', 'init_cfg'])
def test_a_pickle_that_would_make_a_file_does_not(record_fault, tmp_path, door, unsafe_load):
    made, checkpoint = tmp_path / 'made', tmp_path / 'iter_1.pth'
    build_runner(tmp_path).train()
    torch.save({**torch.load(checkpoint, weights_only=False), 'evil': makes_folder(made)}, checkpoint)
    runner = build_runner(tmp_path, unsafe_load, iterations=2, **doors(checkpoint)[door])
    if unsafe_load:
        runner.train()
    else:
        with pytest.raises(CheckpointError, match='refused, because it is more than weights'):
            runner.train()
        record_fault('doors')
    assert made.exists() == unsafe_load


@pytest.mark.parametrize('door', ['load_from', 'resume', 'auto'])
def test_a_config_in_a_checkpoint_is_not_run(record_fault, tmp_path, door, unsafe_load):
    """mmengine runs the text at meta["config"] as Python on a resume, and further texts in its Inferencer."""
    build_runner(tmp_path).train()
    path = str(tmp_path / 'iter_1.pth')
    checkpoint = torch.load(path, weights_only=False)
    code = f'__import__("os").mkdir({str(tmp_path / "made")!r})\n'
    checkpoint['meta'].update(config=code, cfg=code)
    checkpoint['message_hub']['runtime_info']['cfg'] = code
    torch.save(checkpoint, path)
    runner = build_runner(tmp_path, unsafe_load, iterations=2, **doors(path)[door])
    loaded = CheckpointLoader.load_checkpoint(path)
    texts = [loaded['meta'].get('config'), loaded['meta'].get('cfg'), loaded['message_hub']['runtime_info'].get('cfg')]
    assert texts == ([code] * 3 if unsafe_load else [None] * 3)
    runner.train()
    assert runner.iter == 2
    assert (tmp_path / 'made').exists() == (unsafe_load and door != 'load_from')
    record_fault('doors', 0 if unsafe_load else 3)


@pytest.mark.parametrize('meta', [{}, {'meta': None}, {'meta': {'epoch': 1}}, {'meta': {'epoch': 1, 'iter': 1}}])
def test_bare_weights_are_not_resumed(record_fault, tmp_path, schemes, meta):
    path = tmp_path / 'iter_1.pth'
    torch.save({'state_dict': build_runner(tmp_path).model.state_dict(), **meta}, path)
    for door in ('resume', 'auto'):
        with pytest.raises(CheckpointError, match=r"iter_1\.pth' holds weights, and not the state .* set load_from"):
            build_runner(tmp_path, **doors(path)[door]).train()
    record_fault('damages', 2)


@pytest.mark.parametrize(
    'change',
    [
        lambda checkpoint: checkpoint['optimizer']['state'].update({0: True}),
        lambda checkpoint: checkpoint['optimizer'].pop('param_groups'),
        lambda checkpoint: checkpoint['meta'].update(iter='x'),
        lambda checkpoint: checkpoint['meta']['exact_resume'].pop('batches_done'),
    ],
    ids=['moments', 'groups', 'iteration', 'position'],
)
def test_a_damaged_state_of_a_training_names_the_file(record_fault, tmp_path, change):
    build_runner(tmp_path).train()
    path = tmp_path / 'iter_1.pth'
    checkpoint = torch.load(path, weights_only=False)
    change(checkpoint)
    torch.save(checkpoint, path)
    with pytest.raises(CheckpointError, match=r"iter_1\.pth' cannot be resumed: .*; to start anew from its weights"):
        build_runner(tmp_path, iterations=2, resume=True).train()
    record_fault('damages')


def test_a_list_is_no_checkpoint(tmp_path, schemes):
    torch.save([torch.ones(1)], tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match='a dict of weights was expected, it is a list'):
        build_runner(tmp_path, load_from=str(tmp_path / 'weights.pth')).train()


@pytest.mark.parametrize('own', [True, False])
def test_weights_that_are_no_numbers_are_named(record_fault, tmp_path, schemes, own):
    runner = build_runner(tmp_path)
    if not own:
        runner.model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
    weights = runner.model.state_dict()
    first = 'head.weight' if own else '0.weight'
    weights[first] = torch.full_like(weights[first], float('nan'))
    torch.save({'state_dict': weights}, tmp_path / 'weights.pth')
    with pytest.raises(CheckpointError, match=rf'1 of its {len(weights)} weights are not finite .*: {first}'):
        runner.load_checkpoint(str(tmp_path / 'weights.pth'))
    record_fault('damages')


def test_loaders_of_other_schemes_are_safe_too(record_fault, tmp_path, unsafe_load):
    """All loaders of mmengine are replaced, also loaders with weights_only=False."""
    made = tmp_path / 'made'
    torch.save({'state_dict': makes_folder(made)}, tmp_path / 'weights.pth')

    @CheckpointLoader.register_scheme(prefixes='elsewhere://', force=True)
    def load_from_elsewhere(filename, map_location=None):
        return torch.load(tmp_path / 'weights.pth', weights_only=False)

    for _ in range(2):
        loading.install_checkpoint_loaders(unsafe=unsafe_load)
    if unsafe_load:
        CheckpointLoader.load_checkpoint('elsewhere://weights.pth')
    else:
        with pytest.raises(Exception, match='makedirs'):
            CheckpointLoader.load_checkpoint('elsewhere://weights.pth')
        record_fault('doors')
    assert made.exists() == unsafe_load
    assert 'TORCH_FORCE_WEIGHTS_ONLY_LOAD' not in os.environ


def test_a_classifier_of_ones_own_resumes_its_last_norm(tmp_path, schemes):
    """The names equal mmpretrain's classifiers, whose norm3 is no output norm."""
    runner = build_runner(tmp_path, model__out_indices=(3,))
    runner.model.head = torch.nn.ModuleDict({'fc': runner.model.head})
    torch.nn.init.normal_(runner.model.backbone.norm3.weight)
    torch.save({'state_dict': runner.model.state_dict()}, tmp_path / 'own.pth')
    resumed = build_runner(tmp_path, model__out_indices=(3,))
    resumed.model.head = torch.nn.ModuleDict({'fc': resumed.model.head})
    resumed.load_checkpoint(str(tmp_path / 'own.pth'))
    for key, value in resumed.model.state_dict().items():
        assert torch.equal(value, runner.model.state_dict()[key]), key
