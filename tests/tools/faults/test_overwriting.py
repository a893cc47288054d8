"""The tools never replace files of the user or their own inputs, and do replace their own outputs."""

import json
import os
import shutil

import cv2
import numpy as np
import pytest
import torch

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

from helpers.in_process import ROOT, error_of, run, run_well
from helpers.openmmlab.own_data import detection, make_own_data, segmentation
from helpers.openmmlab.random_models import save_random_model
from mmengine.config import Config

from swin_backbone import SwinBackbone
from swin_backbone.openmmlab.data import media

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


WRITERS = {  # each tool with the file that it writes
    'flops': ((CONFIG, '--backbone-only', '--shape', 64, '--json'), 'out.json'),
    'print_config': ((CONFIG, '--save-path'), 'out.py'),
    'plot_log': (('{folder}/scalars.json', '--out'), 'out.png'),
    'visualize windows': (('--shape', 64, 64, '--out'), 'out.png'),
    'convert_checkpoint': (('{folder}/a.pth', '--to', 'timm'), 'out.pth'),
}


@pytest.mark.parametrize('tool', WRITERS)
def test_a_tool_that_writes_a_file(record_fault, tmp_path, tool):
    torch.save(SwinBackbone(arch='nano').state_dict(), tmp_path / 'a.pth')
    (tmp_path / 'scalars.json').write_text('{"loss": 1.0, "step": 1}\n{"loss": 0.5, "step": 2}\n')
    words, name = WRITERS[tool]
    out, (program, *subcommand) = tmp_path / name, tool.split()
    command = [f'tools/{program}.py', *subcommand, *(str(word).format(folder=tmp_path) for word in words), out]
    out.write_bytes(MINE)
    assert_spared(record_fault, out, *command, words=('is there already', '--overwrite'))
    run_well(*command, '--overwrite')
    assert out.read_bytes() != MINE
    run_well(*command)  # its own


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
    for command, name in ((shapes, 'labels/train/000000.png'), (pictures, '000000_0.jpg')):
        for _ in range(2):
            run_well(*command)
        (tmp_path / name).write_bytes(MINE)
        assert_spared(record_fault, tmp_path / name, *command)


def test_infer_into_the_folder_of_the_data(record_fault, tmp_path):
    model, data = exported(tmp_path / 'model'), tmp_path / 'data'
    picture, labels, overlay = write_picture(data / 'x.png'), data / 'labels' / 'x.png', data / 'overlays' / 'x.jpg'
    more = (model, '--out-dir', data)
    for _ in range(2):  # the second run reads no output of the first run
        assert '1 pictures and frames of 1 files' in run_well('tools/infer.py', data, *more).stdout
    assert not list(data.rglob('.partial-*'))
    for mine in (labels, overlay):
        written = mine.read_bytes()
        mine.write_bytes(MINE)  # corrected by hand, say
        assert_spared(record_fault, mine, 'tools/infer.py', picture, *more, words=('changed since',))
        mine.write_bytes(written)
    write_picture(data / 'overlays' / 'x.png')
    assert f'{overlay} is read here' in error_of('tools/infer.py', overlay, *more, '--overwrite')
    record_fault('outputs')


def test_media_share_no_output(record_fault, tmp_path):
    for name in ('v/000000.png', 'A.png', 'a.jpg'):
        write_picture(tmp_path / name)
    write_video(tmp_path / 'v.mp4', 3)
    names = [medium.name for medium in media.find_media([str(tmp_path)])]
    assert sorted(names) == ['A', 'a_1', 'v/000000', 'v_1']
    record_fault('outputs', 2)


def random_checkpoint(words, folder):
    cfg = Config.fromfile(words[0])
    cfg.model.backbone.depths = [1, 1, 1, 1]
    for part in (cfg.model.get('decode_head'), cfg.model.get('auxiliary_head')):
        if part:
            part.num_classes = 2
    if 'roi_head' in cfg.model:
        cfg.model.roi_head.bbox_head.num_classes = cfg.model.roi_head.mask_head.num_classes = 2
    return save_random_model(cfg, folder)


@pytest.mark.slow
def test_what_a_test_writes(record_fault, tmp_path):
    own = make_own_data(tmp_path / 'own')
    for words, out in ((detection(own), 'found.pkl'), (segmentation(own), 'found')):
        checkpoint = random_checkpoint(words, tmp_path)
        options = words[words.index('--cfg-options') :]
        command = ['tools/test.py', words[0], checkpoint, '--work-dir', tmp_path / 'work', *options]
        pictures = own / 'images' / 'val'
        before = {path.name: path.read_bytes() for path in pictures.iterdir()}
        error = error_of(*command, '--show-dir', pictures)
        assert 'is there already' in error or 'is read here' in error
        record_fault('outputs')
        assert {path.name: path.read_bytes() for path in pictures.iterdir()} == before
        place = tmp_path / words[0].stem / out
        mine = place if out.endswith('.pkl') else place / '0.png'
        mine.parent.mkdir(parents=True)
        mine.write_bytes(MINE)
        assert_spared(record_fault, mine, *command, '--out', place)
        mine.unlink()
        for _ in range(2):
            run_well(*command, '--out', place, '--show-dir', tmp_path / words[0].stem / 'drawn')
        assert mine.is_file()
        assert len(list((tmp_path / words[0].stem / 'drawn').rglob('*.png'))) == 2
        assert not list(tmp_path.rglob('.partial-*'))


def test_pictures_of_one_name_share_no_label(record_fault, tmp_path):
    own = make_own_data(tmp_path / 'own')
    words = segmentation(own)
    checkpoint = random_checkpoint(words, tmp_path)
    for folder in (own / 'images' / 'val', own / 'labels' / 'val'):
        for number, name in enumerate('ab'):
            (folder / name).mkdir()
            (folder / f'{number}.png').rename(folder / name / 'x.png')
    command = ['tools/test.py', words[0], checkpoint, '--work-dir', tmp_path / 'work', '--out', tmp_path / 'found']
    error = error_of(*command, *words[words.index('--cfg-options') :])
    assert 'a/x.png and ' in error
    assert f'would be written to one file, {tmp_path}/found/x.png' in error
    record_fault('outputs')


def test_bad_pictures_and_videos_among_good_ones(record_fault, tmp_path):
    """Of an exported model of one size, with a limit: each is named, the rest is done, and the exit status is 1."""
    model, data, out = exported(tmp_path / 'model'), tmp_path / 'data', tmp_path / 'out'
    info = json.loads((model / 'deploy.json').read_text())
    info['inputs'][0]['shape'] = ['batch', 'height', 'width', 3]
    info['preprocessing']['resize'] = None
    info['limits']['pixels'] = 5000
    (model / 'deploy.json').write_text(json.dumps(info))
    good = [write_picture(data / name) for name in ('a.png', 'z.png')]
    good.append(write_video(data / 'whole.mp4'))
    sizes = {'dot.png': 1, 'large.png': 100}  # mmseg's visualizer draws nothing on a single pixel
    bad = [write_picture(data / name, np.zeros((size, size, 3), np.uint8)) for name, size in sizes.items()]
    for name, content in (('empty.png', b''), ('text.jpg', b'no picture'), ('text.mp4', b'no video')):
        (data / name).write_bytes(content)
        bad.append(data / name)
    os.mkfifo(data / 'pipe.png')
    os.mkfifo(data / 'pipe.mp4')
    (data / 'zero.png').symlink_to('/dev/zero')
    (data / 'dangling.png').symlink_to(data / 'absent')
    (data / 'zero.mkv').symlink_to('/dev/zero')
    bad += [data / name for name in ('pipe.png', 'pipe.mp4', 'zero.png', 'dangling.png', 'zero.mkv')]
    write_picture(data / os.fsdecode(b'caf\xe9.png'))
    shutil.copy(data / 'whole.mp4', data / os.fsdecode(b'caf\xe9.mp4'))
    broken = data / os.fsdecode(b'na\xefve.png')
    broken.write_bytes(b'no picture')
    result = run('tools/infer.py', data, model, '--out-dir', out, '--batch', 3)
    assert result.returncode == 1
    assert 'Traceback' not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith('skipped: ')]
    assert len(lines) == len(bad) + 1
    for path in bad:
        assert any(str(path) in line for line in lines), path
    assert len(list((out / 'labels').glob('*.png'))) == 3
    assert (out / 'labels' / os.fsdecode(b'caf\xe9_1.png')).is_file()
    for name in ('whole.mp4', os.fsdecode(b'caf\xe9.mp4')):
        assert (out / 'overlays' / name).is_file(), list((out / 'overlays').iterdir())
    assert f'{len(bad) + 1} files unreadable' in result.stdout
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
