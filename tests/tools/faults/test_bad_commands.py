"""An error in a command line is one sentence, without a traceback."""

import os
import subprocess

import pytest
from helpers.in_process import ROOT, error_of, run_well
from helpers.openmmlab.own_data import DETECTION, SEGMENTATION, detection, segmentation

from swin_backbone.openmmlab.config_files import read_config

CHECKPOINT = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'  # any existing file


@pytest.mark.parametrize(('tool', 'more'), [('infer', ['--weights', 'CHECKPOINT']), ('flops', [])])
def test_unknown_keys_and_broken_options_are_refused(record_fault, tmp_path, tool, more):
    picture = [tmp_path] if tool == 'infer' else []
    (tmp_path / 'a.png').touch()
    command = [f'tools/{tool}.py', *picture, DETECTION, *more, '--cfg-options']
    error = error_of(*command, 'model.backbon.arch=tiny')
    assert "model has no 'backbon'; did you mean model.backbone.arch?" in error
    assert "--cfg-options takes KEY=VALUE, got 'a'" in error_of(*command, 'a', status=2)
    record_fault('bad_commands', 2)


OF_A_CHECKPOINT = ['--amp', '--compile', '--precision=int8', '--allow-missing', '--unsafe-load']


@pytest.mark.parametrize(
    ('tool', 'option'), [*(('test', option) for option in OF_A_CHECKPOINT), ('infer', '--compile')]
)
def test_an_exported_model_has_its_precision_already(record_fault, tmp_path, tool, option):
    (tmp_path / 'exported').mkdir()
    (tmp_path / 'exported' / 'deploy.json').write_text('{}')
    before = ROOT / 'docs' / 'images' / 'predictions.jpg' if tool == 'infer' else CHECKPOINT
    error = error_of(f'tools/{tool}.py', before, tmp_path / 'exported', option)
    expected = (
        f'takes a checkpoint, got the exported folder {tmp_path / "exported"}, which has its own weights and precision'
    )
    assert error.endswith(expected)
    assert option.partition('=')[0] in error
    record_fault('bad_commands')


def test_an_export_takes_no_videos(record_fault, tmp_path):
    """They were left out, and pictures of the data set took their place."""
    (tmp_path / 'clip.mp4').touch()
    command = 'tools/export.py', SEGMENTATION, CHECKPOINT, '--out-dir', tmp_path / 'out', '--pictures'
    assert '--pictures takes pictures, got videos alone' in error_of(*command, tmp_path / 'clip.mp4')
    record_fault('bad_commands')


def test_an_export_of_a_test_of_several_data_sets_reads_pictures(tmp_path):
    """By the pipeline of the first. Then the missing checkpoint is an error."""
    cfg = read_config(SEGMENTATION)
    cfg.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[cfg.test_dataloader.dataset])
    cfg.dump(tmp_path / 'several.py')
    picture = ROOT / 'docs' / 'images' / 'predictions.jpg'
    command = 'tools/export.py', tmp_path / 'several.py', tmp_path / 'absent.pth', '--out-dir', tmp_path / 'out'
    assert 'absent.pth' in error_of(*command, '--pictures', picture)


def test_spaces_reach_the_config(own, tmp_path):
    spaced = tmp_path / 'my pictures'
    spaced.symlink_to(own)
    options = [f'train_dataloader.dataset.data_root={spaced}', '+note="a, b"']
    options += ['train_dataloader.dataset.metainfo.classes=[traffic light, road]']
    more = ['--cfg-options', 'randomness.seed=7']
    result = run_well('tools/print_config.py', SEGMENTATION, '--cfg-options', *options, *more)
    printed = result.stdout.replace(' = ', '=')  # of OpenMMLab's mmengine
    for text in ("/my pictures'", "'traffic light',", "note='a, b'", 'seed=7'):
        assert text in printed
    run_well('tools/check_data.py', SEGMENTATION, '--data', spaced)


OPTIONS = [
    ('infer', '--score-thr', ['nan', '2', 'much']),
    ('infer', '--max-pixels', ['0', '1e6']),
    ('check_data', '--seconds', ['inf', '-1']),
    ('plot_log', '--dpi', ['1000000', 'fine']),
    ('visualize attention', '--point', ['60']),
]


@pytest.mark.parametrize(('tool', 'option', 'values'), OPTIONS)
def test_an_option_says_what_it_takes(record_fault, tool, option, values):
    for value in values:
        name, *command = tool.split()
        program = name if '.' in name else f'tools/{name}.py'
        error = error_of(program, *command, 'a', 'b', 'c', f'{option}={value}', status=2)
        assert f'argument {option}: ' in error
        assert value[:40] in error
        record_fault('bad_commands')


def test_a_log_that_mmengine_did_not_write(record_fault, tmp_path):
    (tmp_path / 'scalars.json').write_text('{"step": "a", "loss": 2}\n{}')
    error = error_of('tools/plot_log.py', tmp_path / 'scalars.json', '--out', tmp_path / 'a.png')
    assert str(tmp_path / 'scalars.json') in error
    assert not (tmp_path / 'a.png').exists()
    record_fault('bad_commands')


EVIL = '!!python/object/apply:os.mkdir [MADE]'
CONFIGS = {
    'a.yaml': f'a: {EVIL}', 'from.py': "_base_ = 'a.yaml'", 'from.json': '{"_base_": "a.yaml"}',
    'deep.yaml': 'a: ' + '[' * 3000 + ']' * 3000, 'bytes.py': b'\xff\xfe', 'list.json': '[1]', 'empty.yaml': '',
    'no_base.py': "_base_ = 'nothing.py'", 'open.py': 'a = (', 'raises.py': 'raise KeyError(7)', 'kind.txt': 'a = 5',
    'tab.yaml': 'a:\n\t- 5',
}  # fmt: skip


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_that_cannot_be_read(record_fault, name, tmp_path):
    for other, text in CONFIGS.items():
        text = text.replace('MADE', str(tmp_path / 'made')) if isinstance(text, str) else text
        (tmp_path / other).write_bytes(text.encode() if isinstance(text, str) else text)
    assert str(tmp_path / name) in error_of('tools/print_config.py', tmp_path / name)
    assert not (tmp_path / 'made').exists()
    record_fault('bad_commands')


def test_a_config_in_yaml_keeps_its_tuples(tmp_path):
    option = ['--cfg-options', '+a=(1,[2],(3,4))', '--save-path', tmp_path / 'a.yaml']
    run_well('tools/print_config.py', SEGMENTATION, *option)
    assert 'a=(' in run_well('tools/print_config.py', tmp_path / 'a.yaml').stdout.replace(' ', '')


def test_a_resume_with_other_classes_says_what_to_do(record_fault, own, tmp_path):
    command = ['tools/train.py', *segmentation(own), '--work-dir', tmp_path]
    run_well(*command)
    words = segmentation(own, classes=('ground', 'nut', 'bolt'))
    error = error_of('tools/train.py', *words, '--work-dir', tmp_path, '--resume')
    assert 'was trained with 2 classes, the model of the config has 3; to start anew from its weights, leave' in error
    record_fault('optimizer_states')


# Settings that no model is built of, and (slow) settings that fail in the first step
BAD_SETTINGS = {
    'model.backbone.arch=huge': 'arch takes one of',
    'model.neck.type=FPNN': 'FPNN is not in the mmdet::model registry',
    'train_dataloader.dataset.pipeline.2.type=Resise': 'Resise is not in the',
    'default_hooks.checkpoint.type=CheckpointHoock': 'CheckpointHoock is not in the',
    'val_evaluator.metric=mAP': "metric should be one of 'bbox'",
}
BAD_STEPS = {
    'model.neck.out_channels=7': 'model.rpn_head of ',
    'model.neck.out_channels=-1': 'model.neck of ',
    'model.rpn_head=None': 'model of ',
    'model.train_cfg.rpn=5': 'model.rpn_head of ',
    'model.test_cfg.rcnn.score_thr=abc': 'model.test_cfg.rcnn.nms of ',
    'model.roi_head.bbox_head.in_channels=7': 'model.roi_head.bbox_head of ',
}


@pytest.mark.parametrize(
    ('option', 'message'),
    [*BAD_SETTINGS.items(), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in BAD_STEPS.items())],
)
def test_a_bad_setting_is_one_sentence(record_fault, own, option, message, tmp_path):
    assert message in error_of('tools/train.py', *detection(own, option), '--work-dir', tmp_path)
    record_fault('bad_commands')


@pytest.mark.parametrize(
    ('tool', 'option'), [('train', '--work-dir'), ('browse_dataset', '--output-dir'), ('print_config', '--save-path')]
)
def test_a_folder_that_is_a_file(record_fault, own, tool, option, tmp_path):
    file = tmp_path / 'file'
    file.write_text('precious')
    place = file / 'a.json' if option == '--save-path' else file
    error = error_of(f'tools/{tool}.py', *detection(own), option, place)
    assert f'tools/{tool}.py: {file}' in error
    assert error.endswith((' (File exists)', ' (Not a directory)'))
    assert file.read_text() == 'precious'
    record_fault('bad_commands')


@pytest.mark.parametrize(
    ('launcher', 'name'), [('slurm', 'SLURM_PROCID'), ('mpi', 'OMPI_COMM_WORLD_RANK'), ('pytorch', 'RANK')]
)
def test_a_launcher_that_did_not_start_this(record_fault, own, launcher, name, tmp_path, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    error = error_of('tools/train.py', *detection(own), '--work-dir', tmp_path, '--launcher', launcher)
    assert error.endswith(f'--launcher {launcher} takes processes that it starts, got a process without {name}')
    record_fault('bad_commands')


@pytest.mark.parametrize(('tool', 'words'), [('dist_train', 'CONFIG --amp'), ('dist_test', 'CONFIG CKPT')])
def test_a_distributed_run_without_a_number_of_processes(record_fault, tool, words):
    command = ['bash', f'tools/{tool}.sh', *words.split()]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, 'PYTHON': 'false'}, capture_output=True, text=True)
    assert result.returncode == 2
    checkpoint = ' CKPT' if tool == 'dist_test' else ''
    assert result.stderr.startswith(f'tools/{tool}.sh CONFIG{checkpoint} GPUS takes a number of processes')
    assert len(result.stderr.splitlines()) == 1
    record_fault('bad_commands')
