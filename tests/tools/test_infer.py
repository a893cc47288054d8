"""tools/infer.py, browse_dataset.py and print_config.py, with a user's command lines."""

import io
import json
import math
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from helpers.in_process import error_of, run, run_well
from helpers.openmmlab.layouts import write, write_picture
from helpers.openmmlab.own_data import detection, make_own_data, segmentation
from helpers.openmmlab.random_models import DETECTION, SEGMENTATION, save_random_model
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from swin_backbone.workbench.data import media
from swin_backbone.workbench.predict import predictor as inference
from swin_backbone.workbench.predict.inference import Inference, LoadedFrame
from swin_backbone.workbench.predict.prediction import Prediction, find_category_ids
from swin_backbone.workbench.predict.results import ResultsWriter
from swin_backbone.workbench.predict.video_writer import VideoWriter


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory):
    """Checkpoints of a random detector and a random segmentor."""
    folder = tmp_path_factory.mktemp('checkpoints')
    for path in (DETECTION, SEGMENTATION):
        save_random_model(path, folder)
    return folder


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    """Three pictures of two sizes in folders, a text file, and a video of five frames."""
    folder = tmp_path_factory.mktemp('pictures')
    rng = np.random.default_rng(0)
    for name, size in (('a.png', (96, 128)), ('b.jpg', (96, 128)), ('inner/a.png', (80, 64))):
        (folder / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / name), rng.integers(0, 256, (*size, 3), np.uint8))
    (folder / 'broken.jpg').write_text('no picture')
    video = cv2.VideoWriter(str(folder / 'clip.mp4'), cv2.VideoWriter_fourcc(*'mp4v'), 10, (128, 96))
    for _ in range(5):
        video.write(rng.integers(0, 256, (96, 128, 3), np.uint8))
    video.release()
    return folder


def trained(config, checkpoints):
    return config, '--weights', checkpoints / f'{config.stem}.pth'


def test_detector_on_a_folder_with_a_video_and_a_broken_file(tmp_path, checkpoints, pictures):
    from pycocotools.coco import COCO

    out = tmp_path / 'out'
    result = run('tools/infer.py', pictures, *trained(DETECTION, checkpoints), '--out-dir', out, '--batch', 3,
                 '--score-thr', 0.01, '--compile')  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert f'skipped: {pictures / "broken.jpg"}' in result.stderr.replace('\n', '')
    assert '8 pictures and frames of 4 files' in result.stdout
    assert '1 files unreadable' in result.stdout

    overlays = {str(path.relative_to(out / 'overlays')) for path in (out / 'overlays').rglob('*.???')}
    assert overlays == {'a.jpg', 'b.jpg', 'inner/a.jpg', 'clip.mp4'}
    assert media.count_frames(media.Medium(out / 'overlays' / 'clip.mp4', 'clip', True)) == 5
    assert cv2.imread(str(out / 'overlays' / 'inner' / 'a.jpg')).shape == (80, 64, 3)

    coco, objects = COCO(), json.loads((out / 'results.json').read_text())
    coco.dataset = dict(json.loads((out / 'images.json').read_text()), annotations=[])
    coco.createIndex()
    assert [category['name'] for category in coco.cats.values()] == ['circle', 'square', 'triangle', 'star']
    assert len(coco.imgs) == 8
    assert len(coco.loadRes(objects).anns) == len(objects) > 0
    for outcome in objects:
        assert outcome['score'] >= 0.01
        assert coco.imgs[outcome['image_id']]['height'] == outcome['segmentation']['size'][0]


def test_cocos_classes_have_cocos_ids():
    from mmdet.datasets import CocoDataset, CocoPanopticDataset

    classes = CocoDataset.METAINFO['classes']
    predictor = SimpleNamespace(scope='mmdet', meta=dict(classes=classes))
    ids = dict(zip(classes, find_category_ids(predictor)))
    assert len(ids) == 80
    assert [ids[name] for name in ('person', 'stop sign', 'backpack', 'bowl', 'toilet', 'toothbrush')] == [
        1, 13, 27, 51, 70, 90,
    ]  # fmt: skip
    predictor.meta = CocoPanopticDataset.METAINFO
    ids = dict(zip(predictor.meta['classes'], find_category_ids(predictor)))
    names = ('person', 'toothbrush', 'banner', 'mirror-stuff', 'road', 'window-other', 'tree-merged', 'rug-merged')
    assert len(ids) == 133
    assert [ids[name] for name in names] == [1, 90, 92, 133, 149, 181, 184, 200]
    predictor.meta = dict(classes=['nut', 'bolt'], category_ids=[7])  # not of these classes
    assert find_category_ids(predictor) == [1, 2]


def test_a_batch_predicts_what_single_pictures_do(tmp_path, checkpoints, pictures):
    for size in (1, 2):
        arguments = (pictures / 'a.png', pictures / 'b.jpg', pictures / 'inner/a.png', *trained(DETECTION, checkpoints))
        run_well('tools/infer.py', *arguments, '--out-dir', tmp_path / str(size), '--batch', size, '--score-thr', 0.05)
    single, double = (json.loads((tmp_path / size / 'results.json').read_text()) for size in ('1', '2'))
    assert len(single) == len(double)
    for a in single:  # nearly equal scores may change places
        of_picture = [b['bbox'] for b in double if b['image_id'] == a['image_id']]
        assert any(a['bbox'] == pytest.approx(bbox, abs=0.01) for bbox in of_picture)


def test_a_video_is_left_out_from_a_frame_that_cannot_be_written(tmp_path):
    """Two frames of a batch: the second is not written, and the line stands once."""
    written = []

    def write(frame, *_):
        written.append(frame.number)
        raise ValueError('no space for it')

    results, inference, lines = inference_of(tmp_path, predict=lambda inputs: inputs)
    results.write, inference.task = write, 0
    medium = media.Medium(Path('clip.mp4'), 'clip', True)
    frames = [media.Frame(medium, number, np.zeros((2, 3, 3), np.uint8), (2, 3)) for number in range(2)]
    inference.predict_and_write([LoadedFrame(frame, {}) for frame in frames])
    assert written == [0]
    assert lines == ['skipped: clip.mp4: its predictions cannot be drawn or written: no space for it']


def test_frames_before_one_that_cannot_be_read_are_predicted(tmp_path, monkeypatch):
    """The last frames of a batch were left out with a video that is cut off, and a failed one counted as unreadable."""
    medium, bad = (media.Medium(Path(name), name, True) for name in ('clip.mp4', 'bad.mp4'))

    def read(medium, *_):
        for number in range(3):
            yield media.Frame(medium, number, np.zeros((2, 3, 3), np.uint8), (2, 3))
        raise OSError(f'{medium.path} is cut off')

    def predict(frames):
        if any(frame.medium == bad and frame.number for frame in frames):
            raise ValueError('too much')
        return frames

    monkeypatch.setattr('swin_backbone.workbench.predict.inference.read_frames', read)
    monkeypatch.setattr('swin_backbone.workbench.predict.inference.count_frames', lambda _: 3)
    written = []
    results, inference, lines = inference_of(tmp_path, preprocess=lambda frame: frame, predict=predict)
    results.write = lambda frame, *_: written.append(frame.name)
    inference.run([medium, bad])
    assert written == ['clip.mp4/000000', 'clip.mp4/000001', 'clip.mp4/000002', 'bad.mp4/000000']
    assert (inference.unreadable, inference.failed) == ({medium}, {bad: 1})
    assert lines == [
        'the rest is skipped: clip.mp4 is cut off',
        'the rest is skipped: bad.mp4: the model fails on it: too much',
    ]


def inference_of(out, **changes):
    """Return the writer and the inference of a detector that finds nothing, and the printed lines."""
    lines = []
    console = SimpleNamespace(print=lambda text, **_: lines.append(text))
    progress = SimpleNamespace(console=console, **dict.fromkeys(('add_task', 'update', 'advance'), lambda *_, **__: 0))
    predictor = SimpleNamespace(
        scope='mmdet',
        model=None,
        meta=dict(classes=('a',)),
        read_pixels=media.read_picture,
        describe_dropped_bits=lambda _: '',
        preprocess=lambda _: {},
        predict=lambda model_inputs: [DetDataSample() for _ in model_inputs],
        draw=lambda frame, *_: frame.pixels,
    )
    vars(predictor).update(changes)
    results = ResultsWriter(out, predictor, 0.3)
    return results, Inference(predictor, results, progress, 10**6, 2, False), lines


@pytest.fixture
def clips(tmp_path, pictures):
    """Three videos and a picture."""
    files = [tmp_path / 'in' / name for name in ('a.mp4', 'b.mp4', 'c.mp4', 'd.png')]
    files[0].parent.mkdir()
    for file in files:
        file.write_bytes((pictures / ('a.png' if file.suffix == '.png' else 'clip.mp4')).read_bytes())
    return media.find_media(list(map(str, files)))


def test_a_video_that_cannot_be_closed_is_named_and_the_next_is_written(tmp_path, clips, monkeypatch, record_fault):
    """Each later video failed, and the first was not named."""
    close = VideoWriter.close

    def close_all_but_the_first(video):
        if video.path.stem == 'a':
            video.num_frames += 1
        close(video)

    monkeypatch.setattr(VideoWriter, 'close', close_all_but_the_first)
    results, inference, lines = inference_of(tmp_path / 'out')
    with results.claim_outputs(clips, [], overwrite=False):
        inference.run(clips)
    assert inference.failed == {clips[0]: 0}
    (line,) = lines
    assert line.startswith(f'skipped: {clips[0].path}: its video cannot be written: {tmp_path}/out/overlays/a.mp4')
    overlays = {path.name for path in (tmp_path / 'out/overlays').iterdir() if path.name[0] != '.'}
    assert overlays == {'b.mp4', 'c.mp4', 'd.jpg'}
    assert len(results.images) == 16
    record_fault('outputs')


def test_an_error_of_the_last_video_keeps_the_tables(tmp_path, clips, monkeypatch, record_fault):
    def fail(video):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(VideoWriter, 'close', fail)
    results, inference, _ = inference_of(tmp_path)
    with pytest.raises(OSError, match='No space'), results.claim_outputs(clips[:1], [], overwrite=False):
        inference.run(clips[:1])
    for name in ('results.json', 'images.json'):
        assert json.loads((tmp_path / name).read_text()) is not None
    assert len(json.loads((tmp_path / 'images.json').read_text())['images']) == 5
    record_fault('outputs')


def test_an_error_of_the_pipeline_is_raised_for_debug(tmp_path, clips):
    def fail(frame):
        raise ValueError(f'{frame.medium.path} is no input')

    _, inference, lines = inference_of(tmp_path, preprocess=fail)
    inference.run(clips[:1])
    assert inference.failed == {clips[0]: 0}
    assert lines == [f'skipped: {clips[0].path} is no input']
    inference.debug = True
    with pytest.raises(ValueError, match='is no input'):
        inference.run(clips[:1])


def test_a_detector_has_no_folder_of_labels(tmp_path, clips):
    results, inference, _ = inference_of(tmp_path)
    with results.claim_outputs(clips, [], overwrite=False):
        inference.run(clips)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {'in', 'overlays'}


def test_a_second_ctrl_c_acts_as_outside(tmp_path):
    _, inference, _ = inference_of(tmp_path)
    received = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        with inference.stop_on_ctrl_c():
            signal.raise_signal(signal.SIGINT)
            assert (inference.is_stopped, received) == (True, [])
            signal.raise_signal(signal.SIGINT)
            assert received == [signal.SIGINT]
        inference.is_stopped = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with inference.stop_on_ctrl_c():
            signal.raise_signal(signal.SIGINT)  # of a background job: ignored
        assert not inference.is_stopped
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_segmentor_writes_labels_and_so_do_shards(tmp_path, checkpoints, pictures):
    """With more shards than pictures, some shards are empty."""
    command = ('tools/infer.py', f'{pictures}/**/*.png', *trained(SEGMENTATION, checkpoints), '--out-dir')
    result = run_well(*command, tmp_path / 'whole', '--save-features', '--score-thr', 0.5)
    assert 'without effect on a segmentor: --score-thr' in result.stderr
    for name, size in (('a', (96, 128)), ('a_1', (80, 64))):
        maps = np.load(tmp_path / 'whole' / 'features' / f'{name}.npz')
        assert [maps[f'arr_{number}'].shape[1:] for number in range(4)] == [
            (math.ceil(size[0] / stride), math.ceil(size[1] / stride)) for stride in (4, 8, 16, 32)
        ]
    labels = sorted((tmp_path / 'whole' / 'labels').glob('*.png'))
    assert [path.name for path in labels] == ['a.png', 'a_1.png']  # two pictures with equal names
    palette = np.array(Config.fromfile(SEGMENTATION).train_dataloader.dataset.metainfo.palette)
    for path, shape in zip(labels, [(96, 128), (80, 64)]):
        image = Image.open(path)
        assert image.mode == 'P'
        values = np.asarray(image)  # the classes in the toolboxes' order
        assert values.shape == shape
        assert values.max() < 5
        assert (np.asarray(image.convert('RGB')) == palette[values]).all()
    assert len(list((tmp_path / 'whole' / 'overlays').glob('*.jpg'))) == 2
    assert not list(tmp_path.rglob('.partial-*'))
    for number in range(3):
        run_well(*command, tmp_path / 'parts', '--shard', f'{number}/3')
    parts = sorted((tmp_path / 'parts').glob('*-of-3/labels/*.png'))
    assert [path.read_bytes() for path in parts] == [path.read_bytes() for path in labels]


def test_weights_left_random_stop_a_run(tmp_path, checkpoints, pictures):
    run_well('tools/make_shapes_dataset.py', tmp_path / 'shapes', '--train', 1, '--val', 1, '--shape', 64)
    checkpoint, message = checkpoints / f'{DETECTION.stem}.pth', 'weights of the model (decode_head.'
    assert message in error_of('tools/infer.py', pictures / 'a.png', SEGMENTATION, '--weights', checkpoint)
    command = ('tools/test.py', SEGMENTATION, checkpoint, '--work-dir', tmp_path / 'work')
    options = ('--cfg-options', f'test_dataloader.dataset.data_root={tmp_path}/shapes/')
    assert message in error_of(*command, *options)
    assert 'mIoU' in run_well(*command, '--allow-missing', *options).stdout


def test_a_panoptic_head_gives_the_class_of_each_pixel(tmp_path):
    """mmdet's number of an instance is class + 1000 * instance; 2 is background."""
    meta = dict(classes=('person', 'sky'), palette=[(9, 9, 9), (7, 7, 7)], thing_classes=['person'])
    fusion = SimpleNamespace(test_cfg=None)
    predictor = SimpleNamespace(
        scope='mmdet',
        model=SimpleNamespace(panoptic_fusion_head=fusion),
        meta=meta,
        draw=lambda frame, *_: frame.pixels,
    )
    classes_HW = torch.tensor([[0, 1000, 2], [1, 1, 2000]])
    sample = DetDataSample(pred_panoptic_seg=PixelData(sem_seg=classes_HW[None]))
    results = ResultsWriter(tmp_path, predictor, 0.3)
    pixels = np.zeros((2, 3, 3), np.uint8)
    medium = media.Medium(tmp_path / 'a.png', 'a', False)
    with results.claim_outputs([medium], [], overwrite=False):
        results.write(media.Frame(medium, 0, pixels, (4, 6)), sample)  # reduced
    assert np.asarray(Image.open(tmp_path / 'labels' / 'a.png'))[::2, ::2].tolist() == [[0, 0, 2], [1, 1, 0]]
    assert json.loads((tmp_path / 'results.json').read_text()) == []
    segments = np.asarray(Image.open(tmp_path / 'panoptic' / 'a.png'))
    assert segments[::2, ::2, 0].tolist() == [[1, 3, 0], [2, 2, 4]]
    assert segments.shape == (4, 6, 3)
    assert not segments[..., 1:].any()
    table = json.loads((tmp_path / 'panoptic.json').read_text())
    assert [(one['id'], one['category_id'], one['area']) for one in table['annotations'][0]['segments_info']] == [
        (1, 1, 4), (2, 2, 8), (3, 1, 4), (4, 1, 4),
    ]  # fmt: skip
    assert table['annotations'][0]['file_name'] == 'a.png'
    assert [one['isthing'] for one in table['categories']] == [1, 0]


def test_a_picture_whose_files_cannot_be_written_is_in_no_table(tmp_path):
    results, *_ = inference_of(tmp_path)
    (tmp_path / 'overlays').write_text('in the way')
    medium = media.Medium(tmp_path / 'a.png', 'a', False)
    with pytest.raises(OSError, match='overlays'):
        results.write(media.Frame(medium, 0, np.zeros((2, 3, 3), np.uint8), (2, 3)), DetDataSample())
    assert results.images == results.entries == []


OF_A_CONFIG = [('--backbone', 'swin-t'), ('--cfg-options', 'a=1'), ('--allow-missing',), ('--unsafe-load',)]


@pytest.mark.parametrize('option', [*OF_A_CONFIG, ('--recipe', 'keep'), ('--recipe', 'swin')])
def test_an_exported_folder_takes_no_option_of_a_config(tmp_path, option):
    (tmp_path / 'deploy.json').write_text('{}')
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((8, 8, 3), np.uint8))
    error = error_of('tools/infer.py', tmp_path / 'a.png', tmp_path, *option)
    assert re.search(rf'{option[0]} .*takes a (config|checkpoint), got the exported folder', error)


@pytest.mark.parametrize('classes', [256, 257])
def test_labels_of_many_classes(classes):
    """A palette has 256 colours: more classes are 16 bits of grey."""
    names = tuple(map(str, range(classes)))
    predictor = SimpleNamespace(scope='mmseg', meta=dict(classes=names, palette=[(7, 7, 7)] * classes))
    sample = SegDataSample(pred_sem_seg=PixelData(data=torch.tensor([[[0, 43, classes - 1]]])))
    frame = media.Frame(media.Medium(Path('a.png'), 'a', False), 0, np.zeros((1, 3, 3), np.uint8), (2, 6))
    image = Image.open(io.BytesIO(Prediction(None, sample, frame, predictor, 0.3).labels_png()))
    assert image.mode == ('P' if classes == 256 else 'I;16')
    assert np.asarray(image).tolist() == [[0, 0, 43, 43, classes - 1, classes - 1]] * 2


@pytest.mark.parametrize('words', [detection, segmentation])
def test_browse_dataset_draws_what_is_trained_on(tmp_path, words):
    more = ('--not-show', '--output-dir', tmp_path / 'out', '--show-number', 2)
    assert '2 pictures in' in run_well('tools/browse_dataset.py', *more, *words(make_own_data(tmp_path))).stdout
    assert len(list((tmp_path / 'out').glob('*.jpg'))) == 2


def rotated(root):
    """Return arguments for a picture with a turned box, in DOTA's format."""
    write_picture(root / 'trainval' / 'images', 'P0001', np.zeros((64, 64, 3), np.uint8), '.png')
    write(root / 'trainval' / 'annfiles' / 'P0001.txt', '32 8 56 32 32 56 8 32 ship 0\n')
    keys = (f'train_dataloader.dataset.data_root={root}', 'train_dataloader.dataset.pipeline.3.scale=(256,256)')
    return 'mmrotate::rotated_retinanet/rotated-retinanet-rbox-le90_r50_fpn_1x_dota.py', '--cfg-options', *keys


def classified(root):
    for name in ('cat', 'dog'):
        write_picture(root / name, '0', np.zeros((64, 64, 3), np.uint8))
        write_picture(root / name, '1', np.zeros((64, 64, 3), np.uint8))
    return 'mmpretrain::resnet/resnet18_8xb32_in1k.py', '--data', root, '--cfg-options', f'+work_dir={root.parent}/work'


@pytest.mark.toolboxes
@pytest.mark.parametrize(('package', 'words'), [('mmrotate', rotated), ('mmpretrain', classified)])
def test_browse_dataset_draws_turned_boxes_and_classes(tmp_path, package, words):
    pytest.importorskip(package, reason=f'{package} is not installed: make install EXTRAS=cls,rotate')
    run_well('tools/browse_dataset.py', *words(tmp_path / 'own'), '--not-show', '--output-dir', tmp_path / 'out')
    drawn = [cv2.imread(str(path)) for path in sorted((tmp_path / 'out').glob('*.jpg'))]
    assert len(drawn) == (1 if package == 'mmrotate' else 2)
    for pixels in drawn:
        assert min(pixels.shape[:2]) >= 224
        assert pixels.max() > 100
        if package == 'mmrotate':  # an edge from (32, 8) to (56, 32), four times larger, and no edge of an upright box
            assert pixels[76:84, 172:180].max() > 60
            assert pixels[28:36, 28:36].max() < 60


def test_what_print_config_prints_is_the_config_of_a_training(tmp_path):
    saved, data = tmp_path / 'config.py', make_own_data(tmp_path / 'own')
    result = run_well(
        'tools/print_config.py', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', '--backbone', 'swin-s',
        '--data', data, '--epochs', 3, '--batch', 2, '--shape', 64, 96,
        '--save-path', saved, '--cfg-options', 'model.backbone.drop_path_rate=0.4',
    )  # fmt: skip
    assert result.stdout == saved.read_text() + '\n'
    assert 'learning rate 0.0001, 2 pictures per step; the config has it for 16' in result.stderr
    cfg = Config.fromfile(saved)
    assert (cfg.model.backbone.arch, cfg.model.backbone.drop_path_rate) == ('small', 0.4)
    assert (cfg.train_cfg.max_epochs, cfg.train_dataloader.batch_size) == (3, 2)
    assert cfg.train_dataloader.dataset.pipeline[2].scale == (96, 64)
    assert cfg.model.bbox_head.num_classes == 2
    assert 'work_dir' not in cfg


def test_a_picture_that_fails_in_the_pipeline_is_skipped(record_fault, tmp_path, checkpoints, pictures):
    line, half, deep, out = (tmp_path / name for name in ('line.png', 'half.jpg', 'deep.png', 'out'))
    cv2.imwrite(str(deep), cv2.imread(str(pictures / 'a.png')).astype(np.uint16) * 16)
    cv2.imwrite(str(line), np.zeros((1, 5000, 3), np.uint8))
    half.write_bytes((pictures / 'b.jpg').read_bytes()[:-900])
    inputs = (deep, line, half, pictures / 'b.jpg', *trained(DETECTION, checkpoints))
    result = run('tools/infer.py', *inputs, '--out-dir', out, '--batch', 3)
    assert result.returncode == 1
    assert f'skipped: {line} of 5000x1 pixels is no input for the test pipeline' in result.stderr
    assert f'skipped: {half} is damaged: image file is truncated' in result.stderr
    assert '2 pictures and frames of 2 files' in result.stdout
    assert '1 files unreadable' in result.stdout
    assert '1 files failed in the model, its pipeline' in result.stdout
    assert '16 bits a channel, of which the upper 8 are used' in result.stderr
    assert {path.name for path in (out / 'overlays').glob('*.jpg')} == {'deep.jpg', 'b.jpg'}
    record_fault('bad_data', 2)


def test_what_was_predicted_is_written_whatever_happens_then(tmp_path, checkpoints, pictures, monkeypatch):
    predict = inference.Predictor.predict
    calls = []

    def fail_the_second_time(self, model_inputs):
        calls.append(len(model_inputs))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict(self, model_inputs)

    monkeypatch.setattr(inference.Predictor, 'predict', fail_the_second_time)
    arguments = (pictures / 'a.png', pictures / 'b.jpg', *trained(DETECTION, checkpoints))
    with pytest.raises(KeyboardInterrupt):
        run('tools/infer.py', *arguments, '--out-dir', tmp_path)
    images = json.loads((tmp_path / 'images.json').read_text())['images']
    assert [Path(image['file_name']).name for image in images] == ['a.png']
    assert (tmp_path / 'results.json').exists()


def test_large_pictures_are_reduced_and_results_are_full_size(record_fault, tmp_path, checkpoints, pictures):
    for config in (DETECTION, SEGMENTATION):
        out = tmp_path / config.stem
        result = run_well('tools/infer.py', pictures / 'a.png', *trained(config, checkpoints), '--out-dir', out,
                          '--max-pixels', 48 * 64, '--score-thr', 0.01)  # fmt: skip
        assert '128x96 pixels are seen and drawn as 64x48; --max-pixels takes more' in result.stderr
        assert cv2.imread(str(out / 'overlays' / 'a.jpg')).shape == (48, 64, 3)
        record_fault('bad_data')
    assert Image.open(out / 'labels' / 'a.png').size == (128, 96)
    out = tmp_path / DETECTION.stem
    (image,) = json.loads((out / 'images.json').read_text())['images']
    assert (image['height'], image['width']) == (96, 128)
    objects = json.loads((out / 'results.json').read_text())
    assert {tuple(outcome['segmentation']['size']) for outcome in objects} == {(96, 128)}
    assert max(outcome['bbox'][0] + outcome['bbox'][2] for outcome in objects) > 64


def test_ctrl_c_ends_after_the_frame_at_hand(tmp_path, checkpoints, pictures, monkeypatch):
    """The video has the frames before the fault. Later files are left out."""
    open_video = cv2.VideoCapture

    class Video:
        def __init__(self, source):
            self.video, self.frames = open_video(source), 0

        def __getattr__(self, name):
            return getattr(self.video, name)

        def read(self):
            self.frames += 1
            if self.frames == 3:
                signal.raise_signal(signal.SIGINT)
            return self.video.read()

    monkeypatch.setattr(cv2, 'VideoCapture', Video)
    inputs = pictures / 'broken.jpg', pictures / 'clip.mp4', pictures / 'a.png', *trained(DETECTION, checkpoints)
    handler = Mock()
    earlier = signal.signal(signal.SIGINT, handler)  # that of an earlier tool; a job in the background ignores Ctrl-C
    try:
        result = run('tools/infer.py', *inputs, '--out-dir', tmp_path, '--batch', 2)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert result.returncode == 130
    handler.assert_not_called()
    assert '3 pictures and frames of 1 files' in result.stdout
    assert [path.name for path in (tmp_path / 'overlays').glob('*.*4')] == ['clip.mp4']
    assert media.count_frames(media.Medium(tmp_path / 'overlays' / 'clip.mp4', '', True)) == 3


@pytest.mark.parametrize('camera', ['0', 'rtsp://camera:554/live', 'https://pictures.org/a.jpg?size=1'])
def test_a_camera_is_refused_with_a_replacement(camera, tmp_path, record_fault):
    error = error_of('tools/infer.py', camera, DETECTION, '--weights', 'nowhere.pth', '--out-dir', tmp_path / 'out')
    assert (
        f'{camera!r} is none, or matches none. A camera or an address is not read: record or download a file first'
        in error
    )
    record_fault('bad_pictures')
