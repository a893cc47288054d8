"""Faults in pictures, labels and annotations give one sentence in each tool."""

import os

import cv2
import numpy as np
import pytest
from helpers import edited_json
from helpers.in_process import run, run_well
from helpers.openmmlab.jobs import build_runner, load_config
from helpers.openmmlab.own_data import SIZE, detection, detection_of, make_own_data, segmentation
from mmengine.config import Config
from mmengine.registry import DefaultScope
from PIL import Image

from swin_backbone.checks import DataError
from swin_backbone.openmmlab.errors import describe_error
from swin_backbone.workbench.data import check_labels
from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets
from swin_backbone.workbench.data.guard import guard_dataset


@pytest.fixture
def own(tmp_path):
    return make_own_data(tmp_path / 'own')


def config(words):
    from swin_backbone.workbench.configs.cfg_options import parse_options

    return load_config(str(words[0]), None, parse_options(words[2:]), 'none')


def first_item(words, phase='train', **options):
    """Return the first sample of a data set, without a check of the data before."""
    cfg = config(words)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = BuiltDatasets(cfg, ()).build_phase(phase)
        guard_dataset(dataset, cfg, phase == 'train', **{'skip_unreadable': False, **options})
        dataset.pipeline.are_stated_masks_checked = False
        return dataset, dataset[0]


def sentence(result):
    """Return the last line of a tool's output, and assert that it has no traceback."""
    assert result.returncode == 1, result.stderr[-1000:]
    assert 'Traceback' not in result.stderr
    return (result.stderr.strip() or result.stdout.strip()).splitlines()[-1]  # tools/check_data.py's are a result


LABELS = {
    'a value': (np.full((SIZE, SIZE), 200, np.uint8), 'PNG', 'has the values 200 (2304 pixels); 2 classes and ignore'),
    '16 bits': (np.full((SIZE, SIZE), 300, np.uint16), 'PNG', '300 (2304 pixels); 2 classes and ignore_index=255 '
                'allow 0 to 1, 255. It has 16 bits'),
    'JPEG': (np.ones((SIZE, SIZE), np.uint8), 'JPEG', 'is a JPEG, which changes values'),
    'colours': (np.full((SIZE, SIZE, 3), 77, np.uint8), 'PNG', 'has colours (RGB), and a label has one channel'),
    'another size': (np.ones((SIZE, SIZE // 2), np.uint8), 'PNG', f'is 24x{SIZE}, and its picture {SIZE}x{SIZE}'),
}  # fmt: skip


@pytest.mark.parametrize('kind', LABELS)
def test_a_wrong_label_is_named_before_and_during_training(record_fault, own, kind):
    pixels, file_format, message = LABELS[kind]
    path = own / 'labels' / 'train' / '0.png'
    Image.fromarray(pixels).save(path, format=file_format)
    words = segmentation(own)
    with pytest.raises(DataError) as error:
        first_item(words)
    for text in (describe_error(error.value), *check_data(BuiltDatasets(config(words), ()))[0].errors.sentences()):
        assert str(path) in text
        assert message in text
    record_fault('bad_data', 2)


def test_labels_of_one_channel_are_read_whatever_their_mode(own):
    folder = own / 'labels' / 'train'
    palette = Image.fromarray(np.ones((SIZE, SIZE), np.uint8), 'P')
    palette.putpalette([0, 0, 0, 250, 0, 0])
    palette.save(folder / '0.png')
    Image.fromarray(np.ones((SIZE, SIZE), np.uint16)).save(folder / '1.png')
    Image.fromarray(np.full((SIZE, SIZE), 255, np.uint8)).save(folder / '2.png')
    Image.fromarray(np.ones((SIZE, SIZE), bool)).save(folder / '3.png')
    reports = check_data(BuiltDatasets(config(segmentation(own)), ()))
    assert not reports[0].errors
    assert 'labels with every pixel ignored, whose loss is 0' in reports[0].warnings.counts
    assert reports[0].classes['nut'] == 3 * SIZE * SIZE
    assert reports[0].classes['(ignored)'] == SIZE * SIZE
    first_item(segmentation(own))


def test_more_classes_than_a_label_has_values(own):
    names = tuple(f'class {number}' for number in range(300))
    reports = check_data(BuiltDatasets(config(segmentation(own, classes=names)), ()))
    assert not reports[0].errors
    assert reports[0].classes['class 1'] == 4 * 24 * 24
    assert reports[0].classes['class 299'] == 0


def test_labels_from_one_are_checked_like_in_training(own):
    rule = check_labels.LabelRule(2, 255, reduce_zero_label=True)
    path = own / 'labels' / 'train' / '0.png'
    Image.fromarray(np.full((SIZE, SIZE), 2, np.uint8)).save(path)
    assert (check_labels.read_label(path, rule, (SIZE, SIZE)) == 2).all()
    with pytest.raises(DataError, match='allow 0 to 1, 255'):
        check_labels.read_label(path, check_labels.LabelRule(1, 255, True, {1: 7}), (SIZE, SIZE))


def log_of(work_dir):
    return ''.join(path.read_text() for path in work_dir.rglob('*.log'))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def truncated_jpeg(path):
    """A truncated JPEG. Some decoders read the first part."""
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    data = cv2.imencode('.jpg', pixels)[1].tobytes()
    path.write_bytes(data[: len(data) * 9 // 10])


def replace_by(make):
    def spoil(path):
        path.unlink()
        make(path)

    return spoil


BREAK = {
    'truncated': (truncate, 'is damaged'),
    'a truncated JPEG': (truncated_jpeg, 'is damaged: image file is truncated'),
    'missing': (lambda path: path.unlink(), 'is not there'),
    'empty': (lambda path: path.write_bytes(b''), 'is empty'),
    'a web page': (lambda path: path.write_text('<!DOCTYPE html><html></html>'), 'cannot be read as a picture'),
    'a pipe': (replace_by(os.mkfifo), 'is a device, FIFO or socket, not a file'),
    'a folder': (replace_by(os.mkdir), 'is a folder, not a file'),
}
LISTED = [kind for kind in BREAK if kind not in ('missing', 'a pipe', 'a folder')]  # by mmseg's data sets


@pytest.mark.parametrize(('words', 'folder', 'kind'), [
    *((detection, 'images', kind) for kind in BREAK), *((segmentation, 'labels', kind) for kind in BREAK),
    *((segmentation, 'images', kind) for kind in LISTED),
])  # fmt: skip
def test_unreadable_files_are_named_or_skipped_and_counted(record_fault, own, words, folder, kind):
    spoil, message = BREAK[kind]
    path = own / folder / 'train' / '0.png'
    spoil(path)
    (printed,) = check_data(BuiltDatasets(config(words(own)), ()))[0].errors.sentences()
    assert printed.startswith('pictures or labels that cannot be used: 1, as')
    assert message in printed
    assert 'skip-unreadable' not in printed  # of a training: check_data.py goes on anyway
    with pytest.raises(DataError) as error:
        first_item(words(own))
    text = describe_error(error.value)
    assert text.startswith(str(path))
    assert message in text
    assert '--skip-unreadable' in text
    dataset, item = first_item(words(own), skip_unreadable=True)
    assert not item['data_samples'].img_path.endswith('0.png')
    assert int(dataset.pipeline.skipped.sum()) == 1
    record_fault('bad_data', 3)


@pytest.mark.parametrize('words', [pytest.param(detection, marks=pytest.mark.slow), segmentation])
def test_train_skips_and_counts_unreadable_pictures(record_fault, own, words, tmp_path):
    truncate(own / 'images' / 'train' / '1.png')
    truncate(own / 'images' / 'val' / '1.png')
    data = ['--data', own, *(['--annotations', own / 'labels'] if words is segmentation else [])]
    printed = sentence(
        run('tools/train.py', *words(own)[:1], *data, *words(own)[1:], '--work-dir', tmp_path / 'stopped')
    )
    assert f'{own}/images/train/1.png is damaged' in printed
    arguments = (*words(own), '--work-dir', tmp_path / 'work')
    run_well('tools/train.py', *arguments, '--skip-unreadable')
    log = log_of(tmp_path / 'work')
    assert f'skipped: {own}/images/train/1.png is damaged' in log
    assert '1 pictures were skipped' in log
    assert '1 of 2 pictures are not tested: a metric that reads an annotation file itself' in log
    (checkpoint,) = (tmp_path / 'work').glob('*_*.pth')
    arguments = (words(own)[0], checkpoint, *words(own)[1:], '--work-dir', tmp_path / 'work')
    assert f'{own}/images/val/1.png is damaged' in sentence(run('tools/test.py', *arguments))
    run_well('tools/test.py', *arguments, '--skip-unreadable')
    record_fault('bad_data', 4)


def test_a_new_pipeline_is_guarded(record_fault, own, tmp_path):
    """RTMDet's PipelineSwitchHook sets another pipeline for the last epochs."""
    from swin_backbone.workbench.runner import build

    truncate(own / 'images' / 'train' / '1.png')
    cfg = config(detection(own, 'train_cfg.max_epochs=2', 'train_cfg.val_interval=9'))
    switch_pipeline = cfg.train_dataloader.dataset.pipeline
    cfg.custom_hooks = [dict(type='PipelineSwitchHook', switch_epoch=1, switch_pipeline=switch_pipeline)]
    cfg.work_dir = str(tmp_path)
    build.run_loop(build_runner(cfg, skip_unreadable=True), 'train')
    assert '1 pictures were skipped' in log_of(tmp_path)
    record_fault('bad_data')


def test_a_worker_processs_error_is_the_sentence_alone(record_fault, own, tmp_path):
    path = own / 'labels' / 'train' / '0.png'
    Image.fromarray(np.full((SIZE, SIZE), 200, np.uint8)).save(path)
    cfg = config(segmentation(own, 'train_dataloader.num_workers=1'))
    cfg.work_dir = str(tmp_path)
    from swin_backbone.workbench.runner import build

    with pytest.raises(DataError) as error:
        build.run_loop(build_runner(cfg), 'train')
    assert 'Traceback' in str(error.value)  # for --debug
    assert describe_error(error.value) == (
        f'the label {path} has the values 200 (2304 pixels); 2 classes and ignore_index=255 allow 0 to 1, 255.'
    )
    record_fault('bad_data')


def test_nothing_but_unreadable_pictures_ends_with_a_sentence(record_fault, own):
    for path in (own / 'images' / 'train').iterdir():
        truncate(path)
    for words in (detection(own), segmentation(own)):
        with pytest.raises(DataError, match='none of 4 pictures can be trained on'):
            first_item(words, skip_unreadable=True)
        record_fault('bad_data')


def change_coco(root, split, change):
    with edited_json(root / f'{split}.json') as coco:
        change(coco)


OBJECTS = {
    'no objects': (lambda c: c['annotations'].clear(), 'annotation files without objects'),
    'reaching out': (lambda c: c['annotations'][0].update(bbox=[9, 0, 99, 9]), 'boxes that reach out of their'),
    'no such image': (lambda c: c['annotations'][0].update(image_id=9), "objects whose 'image_id' is that of no image"),
    'another size': (lambda c: c['images'][0].update(width=96), 'pictures of another size than their annotations'),
}


@pytest.mark.parametrize('kind', OBJECTS)
def test_objects_that_are_wrong_are_counted(record_fault, own, kind):
    change, message = OBJECTS[kind]
    change_coco(own, 'val', change)
    report = check_data(BuiltDatasets(config(detection(own)), ()))[1]
    printed = next(line for line in report.sentences(report.warnings) if message in line)
    assert printed.startswith('val: ')
    assert ': 1, as ' in printed
    record_fault('bad_data')


@pytest.mark.parametrize(
    ('tool', 'classes', 'message'),
    [
        ('check_data', ('nut', 'screw'), 'the classes screw of metainfo are no categories of'),
        ('browse_dataset', ('bolt', 'nut'), 'must be in the order of the categories of'),
    ],
)
def test_classes_unlike_the_annotation_files_are_named(record_fault, own, tool, classes, message, tmp_path):
    cfg = config(detection(own))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.metainfo.classes = classes
    cfg.dump(tmp_path / 'config.py')
    more = ['--not-show', '--output-dir', tmp_path / 'out'] if tool == 'browse_dataset' else []
    printed = sentence(run(f'tools/{tool}.py', tmp_path / 'config.py', *more))
    assert message in printed
    assert 'nut, bolt' in printed
    record_fault('bad_data')


def test_a_data_set_of_which_nothing_is_left_says_why(record_fault, own, tmp_path):
    with pytest.raises(DataError, match=rf"no picture of {own}/images/train is left with img_suffix='\.tif'"):
        first_item(segmentation(own, img_suffix='.tif'))
    change_coco(own, 'train', lambda coco: coco['annotations'].clear())
    printed = sentence(run('tools/train.py', *detection_of(own), '--work-dir', tmp_path))
    assert 'none of the 4 pictures for training has an object' in printed
    with pytest.raises(DataError, match=r'train\.json is left with filter_cfg=\{'):
        first_item(detection(own, '+train_dataloader.dataset.filter_cfg.filter_empty_gt=True'))
    record_fault('bad_data', 3)


@pytest.mark.parametrize('words', [detection, segmentation])
def test_pictures_of_one_pixel_are_trained_and_tested_on(own, words, tmp_path):
    for split in ('train', 'val'):
        for path in (own / 'images' / split / '0.png', own / 'labels' / split / '0.png'):
            cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[:1, :1])
        with edited_json(own / f'{split}.json') as coco:
            coco['images'][0].update(height=1, width=1)
            coco['annotations'][0].update(bbox=[0, 0, 1, 1], area=1, segmentation=[[0, 0, 1, 0, 1, 1]])
    run_well('tools/train.py', *words(own), '--work-dir', tmp_path / 'work')
    assert 'loss: nan' not in log_of(tmp_path / 'work')


def test_good_data_is_a_table_and_no_error(own):
    for words in (detection(own), segmentation(own)):
        result = run_well('tools/check_data.py', *words)
        assert 'error' not in result.stdout
        assert 'nut' in result.stdout
        assert '48 to 48' in result.stdout
    assert 'annotated' not in result.stdout


def test_what_is_opened_is_bounded_and_said(own):
    cfg = config(detection(own))
    assert check_data(BuiltDatasets(cfg, ()), max_files=2)[0].rows['pictures opened'] == '2 of 4, drawn at random'
    assert check_data(BuiltDatasets(cfg, ()), seconds=0)[0].rows['pictures opened'] == '1 of 4, drawn at random'
    assert check_data(BuiltDatasets(cfg, ()))[0].rows['pictures opened'] == '4'


def test_folders_of_a_data_set_that_are_not_there_are_named(record_fault, tmp_path):
    root = tmp_path.parent / 'configs-none'
    for name, key in (
        ('mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', 'train_dataloader.dataset.ann_file'),
        ('upernet/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py', 'data_prefix.img_path'),
    ):
        options = ['--cfg-options', f'train_dataloader.dataset.data_root={root}', 'model.backbone.init_cfg=None']
        path = f'swin_backbone::{name}'
        printed = sentence(run('tools/train.py', path, '--work-dir', tmp_path, *options))
        assert f'there is no {root}' in printed
        assert key in printed
        assert '--cfg-options train_dataloader.dataset.data_root=' in printed
        record_fault('bad_data')


def test_a_config_of_a_repeated_data_set_is_looked_through_too(own):
    cfg = config(detection(own))
    inner = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=2, dataset=inner)
    (own / 'images' / 'train' / '0.png').unlink()
    report = check_data(BuiltDatasets(Config(cfg._cfg_dict), ()))[0]
    assert report.errors.counts['pictures or labels that cannot be used'] == 1


def test_a_config_without_data_or_with_a_word_for_classes(record_fault, own):
    cfg = config(detection(own))
    cfg.train_dataloader.dataset.metainfo.classes = 'nut'
    with pytest.raises(ValueError, match=r'train_dataloader\.dataset\.metainfo\.classes takes a list of names'):
        check_data(BuiltDatasets(cfg, ()))
    cfg.train_dataloader.pop('dataset')
    with pytest.raises(ValueError, match=r'train_dataloader\.dataset takes a data set, as .*, got None'):
        check_data(BuiltDatasets(cfg, ()))
    with pytest.raises(ValueError, match='the config has no data: none of train_dataloader, val_dataloader'):
        check_data(BuiltDatasets(Config(dict(default_scope='mmdet', train_dataloader=None)), ()))
    record_fault('bad_data', 3)


def test_bad_files_are_named_and_the_others_looked_through(record_fault, own):
    """Two pictures and an object are wrong: the rest is in the report."""
    (own / 'images' / 'train' / '0.png').write_text('no picture')
    (own / 'images' / 'train' / '2.png').unlink()
    change_coco(own, 'val', lambda coco: coco['annotations'][0].update(category_id=99))
    result = run('tools/check_data.py', *detection(own))
    assert result.returncode == 1
    assert not result.stderr
    lines = result.stdout.splitlines()
    (pictures,) = [line for line in lines if line.startswith('error: train:')]
    assert 'pictures or labels that cannot be used: 2, as' in pictures
    assert '0.png' in pictures
    assert '2.png is not there' in pictures
    message = 'objects of unknown category_id; its categories are 3 (nut), 7 (bolt): 1, as annotation 1 has 99'
    assert f'error: val: {own}/val.json: {message}' in result.stdout
    record_fault('bad_data', 3)


def test_browse_names_bad_pictures_and_draws_the_rest(record_fault, own, tmp_path):
    (own / 'images' / 'train' / '1.png').write_text('no picture')
    change_coco(own, 'train', lambda coco: coco['annotations'][2].update(segmentation=[[4, 6, 1e8, 6, 28, 30]]))
    result = run('tools/browse_dataset.py', *detection(own), '--not-show', '--output-dir', tmp_path / 'out')
    assert result.returncode == 1
    assert sorted(path.name for path in (tmp_path / 'out').glob('*.jpg')) == ['000000_0.jpg', '000003_3.jpg']
    assert f'2 pictures in {tmp_path / "out"}, 2 not drawn' in result.stdout
    first, second = result.stderr.strip().splitlines()
    assert f'{own}/images/train/1.png cannot be read as a picture' in first
    assert f'{own}/images/train/2.png: objects with a polygon that pycocotools cannot draw' in second
    record_fault('bad_data', 2)
