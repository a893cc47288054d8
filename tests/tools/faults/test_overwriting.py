"""The tools never replace files of the user or their own inputs."""

import os
import shutil

import cv2
import numpy as np
import pytest
import torch
from helpers import edited_json
from helpers.in_process import ROOT, error_of, run, run_well
from helpers.openmmlab.own_data import detection, make_own_data, segmentation
from helpers.openmmlab.random_models import save_random_model
from mmengine.config import Config

from swin_backbone import SwinBackbone
from swin_backbone.workbench.data import media

MINE = b'the work of a year'
CONFIG = ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py'


def assert_spared(record_fault, path, *command, words=('is there already',), content=MINE):
    """Check that a command stops with a sentence, and does not change `path`."""
    error = error_of(*command)
    for word in (str(path), *words):
        assert word in error
    assert path.read_bytes() == content
    record_fault('outputs')


def exported(folder):
    pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    pytest.importorskip('onnx', reason='onnx is not installed')
    from helpers.export.tiny_export import export_to

    return export_to(folder)


def write_picture(path, pixels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((24, 40, 3), 200, np.uint8) if pixels is None else pixels
    path.write_bytes(cv2.imencode(path.suffix, pixels)[1].tobytes())
    return path


def write_video(path, frames=25, codec='mp4v'):
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), 10, (40, 24))
    for index in range(frames):
        video.write(np.full((24, 40, 3), 6 * index, np.uint8))
    video.release()
    return path


WRITERS = {  # by tool: arguments, and the file written
    'flops': ((CONFIG, '--backbone-only', '--shape', 64, '--json'), 'out.json'),
    'print_config': ((CONFIG, '--save-path'), 'out.py'),
    'plot_log': (('{folder}/scalars.json', '--out'), 'out.png'),
    'visualize windows': (('--shape', 64, 64, '--out'), 'out.png'),
    'convert_checkpoint': (('{folder}/a.pth', '--to', 'timm'), 'out.pth'),
}


@pytest.mark.parametrize('tool', WRITERS)
def test_a_tool_that_writes_a_file(record_fault, tmp_path, tool):
    torch.save(SwinBackbone(arch='nano').state_dict(), tmp_path / 'a.pth')
    (tmp_path / 'scalars.json').write_text('{"loss": 1.0, "iter": 1, "step": 1}\n{"loss": 0.5, "iter": 2, "step": 2}\n')
    words, name = WRITERS[tool]
    out, (program, *subcommand) = tmp_path / name, tool.split()
    command = [f'tools/{program}.py', *subcommand, *(str(word).format(folder=tmp_path) for word in words), out]
    run_well(*command)
    out.write_bytes(MINE)
    assert_spared(record_fault, out, *command, words=('is there already', '--overwrite'))
    run_well(*command, '--overwrite')
    assert out.read_bytes() != MINE


def test_a_checkpoint_is_not_converted_onto_itself(record_fault, tmp_path):
    source, link = tmp_path / 'a.pth', tmp_path / 'hard.pth'
    torch.save(SwinBackbone(arch='nano').state_dict(), source)
    os.link(source, link)
    for target in (source, link):
        command = ('tools/convert_checkpoint.py', source, target, '--to', 'mmdet', '--overwrite')
        assert_spared(record_fault, target, *command, words=('is read here',), content=source.read_bytes())


def test_tools_that_write_a_folder(record_fault, tmp_path):
    own = make_own_data(tmp_path / 'own')
    shapes = ('tools/make_shapes_dataset.py', tmp_path, '--train', 1, '--val', 1, '--shape', 64)
    pictures = ('tools/browse_dataset.py', '--output-dir', tmp_path, '--not-show', '--show-number', 1, *detection(own))
    for command, name in ((shapes, 'images/train/000000.png'), (pictures, '000000_0.jpg')):
        run_well(*command)
        run_well(*command, '--overwrite')
        (tmp_path / name).write_bytes(MINE)
        assert_spared(record_fault, tmp_path / name, *command)


def test_infer_into_the_folder_of_the_data(record_fault, tmp_path):
    model, data = exported(tmp_path / 'model'), tmp_path / 'data'
    picture, labels, overlay = write_picture(data / 'x.png'), data / 'labels' / 'x.png', data / 'overlays' / 'x.jpg'
    more = (model, '--out-dir', data)
    for overwrite in ((), ('--overwrite',)):  # the second run reads no output of the first run
        assert '1 pictures and frames of 1 files' in run_well('tools/infer.py', data, *more, *overwrite).stdout
    assert not list(data.rglob('.partial-*'))
    for mine in (labels, overlay):
        (labels if mine is overlay else overlay).unlink(missing_ok=True)
        mine.write_bytes(MINE)  # corrected by hand, say
        assert_spared(record_fault, mine, 'tools/infer.py', picture, *more)
    write_picture(data / 'overlays' / 'x.png')
    assert f'{overlay} is read here' in error_of('tools/infer.py', overlay, *more, '--overwrite')
    record_fault('outputs')


def test_a_shard_reads_no_overlay_of_an_earlier_run(record_fault, tmp_path, monkeypatch):
    model = exported(tmp_path / 'model')
    for name in 'abcd':
        write_picture(tmp_path / 'data' / f'{name}.png')
    monkeypatch.chdir(tmp_path / 'data')
    for overwrite in ((), ('--overwrite',)):
        result = run_well('tools/infer.py', '.', model, '--shard', '0/2', *overwrite)
        assert '2 pictures and frames of 2 files' in result.stdout
    assert len(media.find_media(['**/*.png'])) == 4
    for named in ('outputs/0-of-2/overlays', 'outputs/0-of-2/overlays/*.jpg'):
        assert len(media.find_media([named])) == 2
    record_fault('outputs')


def test_media_share_no_output(record_fault, tmp_path):
    for name in ('v/000000.png', 'A.png', 'a.jpg'):
        write_picture(tmp_path / name)
    write_video(tmp_path / 'v.mp4', 3)
    names = [medium.name for medium in media.find_media([str(tmp_path)])]
    assert sorted(names) == ['A', 'a_1', 'v/000000', 'v_1']
    record_fault('outputs', 2)


@pytest.fixture
def testing(tmp_path):
    """Return a test of a segmentor, and the options behind the outputs."""
    words = segmentation(make_own_data(tmp_path / 'own'))
    cfg = Config.fromfile(words[0])
    cfg.model.backbone.depths = [1, 1, 1, 1]
    cfg.model.decode_head.num_classes = cfg.model.auxiliary_head.num_classes = 2
    command = ['tools/test.py', words[0], save_random_model(cfg, tmp_path), '--work-dir', tmp_path / 'work']
    return command, words[1:]


def test_what_a_test_writes(record_fault, tmp_path, testing):
    command, options = testing
    picture = tmp_path / 'own' / 'images' / 'val' / '0.png'
    content = picture.read_bytes()
    foreign = 'has files that are no results'
    assert foreign in error_of(*command, '--show-dir', picture.parent, *options)
    assert picture.read_bytes() == content
    mine = tmp_path / 'labels' / '0.png'
    mine.parent.mkdir()
    mine.write_bytes(MINE)
    command += ['--out', mine.parent, *options]
    assert_spared(record_fault, mine, *command, words=[foreign])
    mine.unlink()
    run_well(*command)
    assert_spared(record_fault, mine, *command, content=mine.read_bytes())
    run_well(*command, '--overwrite')
    assert len(list(mine.parent.glob('*.png'))) == 2
    assert not list(tmp_path.rglob('.partial-*'))


def test_pictures_of_one_name_share_no_label(record_fault, tmp_path, testing):
    command, options = testing
    for folder in (tmp_path / 'own' / 'images' / 'val', tmp_path / 'own' / 'labels' / 'val'):
        for number, name in enumerate('ab'):
            (folder / name).mkdir()
            (folder / f'{number}.png').rename(folder / name / 'x.png')
    error = error_of(*command, '--out', tmp_path / 'found', *options)
    assert 'a/x.png and ' in error
    assert 'would be written to one file' in error
    record_fault('outputs')


def test_bad_pictures_and_videos_among_good_ones(record_fault, tmp_path):
    """Of an exported model of one size, with a limit: each is named, the rest is done, and the exit status is 1."""
    model, data, out = exported(tmp_path / 'model'), tmp_path / 'data', tmp_path / 'out'
    with edited_json(model / 'deploy.json') as info:
        info['inputs'][0]['shape'] = ['batch', 'height', 'width', 3]
        info['preprocessing']['resize'] = None
        info['limits']['pixels'] = 5000
    for name in ('a.png', 'z.png', os.fsdecode(b'caf\xe9.png')):
        write_picture(data / name)
    write_video(data / 'whole.mp4')
    shutil.copy(data / 'whole.mp4', data / os.fsdecode(b'caf\xe9.mp4'))
    write_picture(data / 'dot.png', np.zeros((1, 1, 3), np.uint8))  # mmseg's visualizer draws nothing on it
    write_picture(data / 'large.png', np.zeros((100, 100, 3), np.uint8))
    for name in ('empty.png', 'text.jpg', 'text.mp4', os.fsdecode(b'na\xefve.png')):
        (data / name).write_bytes(b'' if name == 'empty.png' else b'no picture')
    os.mkfifo(data / 'pipe.png')
    (data / 'zero.mkv').symlink_to('/dev/zero')
    (data / 'dangling.png').symlink_to(data / 'absent')
    result = run('tools/infer.py', data, model, '--out-dir', out, '--batch', 3)
    assert result.returncode == 1
    assert 'Traceback' not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith('skipped: ')]
    bad = ['dot.png', 'large.png', 'empty.png', 'text.jpg', 'text.mp4', 've.png', 'pipe.png', 'zero.mkv',
           'dangling.png']  # fmt: skip
    for name in bad:
        assert any(name in line for line in lines), name
    assert len(lines) == len(bad)
    assert len(list((out / 'labels').glob('*.png'))) == 3
    assert (out / 'labels' / os.fsdecode(b'caf\xe9_1.png')).is_file()
    for name in ('whole.mp4', os.fsdecode(b'caf\xe9.mp4')):
        assert (out / 'overlays' / name).is_file()
    assert f'{len(bad) - 2} files unreadable' in result.stdout
    assert '2 files failed in the model, its pipeline or the writing of results' in result.stdout  # dot and large
    record_fault('bad_pictures', len(lines))


def test_a_video_that_is_cut_off(record_fault, tmp_path):
    model, cut = exported(tmp_path / 'model'), write_video(tmp_path / 'cut.avi', 40, 'MJPG')
    data = cut.read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    result = run('tools/infer.py', cut, write_picture(tmp_path / 'b.png'), model, '--out-dir', tmp_path / 'cut')
    assert result.returncode == 1
    assert f'the rest is skipped: {cut} is cut off or damaged: ' in result.stderr
    assert 'of its 40 frames can be read' in result.stderr
    assert (tmp_path / 'cut' / 'labels' / 'b.png').is_file()
    frames = len(list((tmp_path / 'cut' / 'labels' / 'cut').glob('*.png')))
    assert 0 < frames < 30
    assert media.count_frames(media.Medium(tmp_path / 'cut' / 'overlays' / 'cut.mp4', '', True)) == frames
    record_fault('bad_pictures')
