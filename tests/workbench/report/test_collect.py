"""The report of a tested model: its AP is the evaluator's, and tools, Python and trainings write it."""

import base64
import json
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers import edited_json
from helpers.in_process import error_of, run_well
from helpers.openmmlab.jobs import build_runner, load_config
from helpers.openmmlab.own_data import SIZE, detection, make_own_data, segmentation
from helpers.openmmlab.random_models import save_random_model
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from PIL import ExifTags, Image

from swin_backbone import load
from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.report.collect import add_coco_metric, report_on_test
from swin_backbone.workbench.report.page import find_common_kind, list_main_metrics


@MODELS.register_module(force=True)  # OpenMMLab's mmengine cannot print a config with a class
class Guess(BaseModel):
    """Predict the labels of a picture with errors, twice."""

    def __init__(self, has_no_boxes=False):
        super().__init__()
        self.has_no_boxes = has_no_boxes

    def forward(self, *args, **kwargs):
        raise NotImplementedError

    def test_step(self, data):
        rng = np.random.default_rng(0)
        for sample in data['data_samples']:
            if 'gt_sem_seg' in sample:
                sample.pred_sem_seg = PixelData(data=sample.gt_sem_seg.data.roll(3, -1) % 2)
                continue
            (height, width), truth = sample.ori_shape, sample.gt_instances
            boxes, labels = (np.repeat(np.asarray(one), 2, axis=0) for one in (truth.bboxes.tensor, truth.labels))
            boxes = boxes + rng.normal(0, 2, boxes.shape).astype(np.float32)
            masks = np.zeros((len(boxes), height, width), bool)
            for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int)):
                mask[y1:y2, x1:x2] = True
            found = dict(bboxes=boxes, scores=rng.random(len(boxes), np.float32), labels=labels, masks=masks)
            sample.pred_instances = InstanceData(**{name: torch.from_numpy(value) for name, value in found.items()})
            if self.has_no_boxes:
                sample.pred_instances.bboxes.zero_()
        return data['data_samples']


def own_config(words, work_dir):
    config, _, *options = map(str, words)
    return load_config(config, str(work_dir), parse_options(options), 'none')


def guessed(cfg, out, guess=None, **more):
    """Write the report on guesses for the test data of a config."""
    cfg.model, cfg.load_from = dict(type='mmengine.Guess', **(guess or {})), None
    add_coco_metric(cfg)
    runner = build_runner(cfg)
    return report_on_test(runner, out, f'{cfg.work_dir}/guess.pth', **more)


@pytest.fixture
def detector(tmp_path):
    """Return the config of a detector, whose data have a crowd."""
    root = make_own_data(tmp_path / 'own')
    with edited_json(root / 'val.json') as coco:
        coco['annotations'].append(dict(coco['annotations'][0], id=77, iscrowd=1, bbox=[0, 30, 20, 18]))
    return own_config(detection(root), tmp_path / 'work')


@pytest.mark.parametrize('other', [None, dict(type='VOCMetric', metric='mAP')])
def test_the_report_has_the_numbers_of_the_evaluator(detector, tmp_path, other):
    """A config without COCO's metric gets it."""
    detector.test_evaluator = other or detector.test_evaluator
    report = guessed(detector, tmp_path / 'out')
    assert report['metrics']['coco/bbox_mAP'] > 0.2
    assert bool(other) == (report['metrics'].get('pascal_voc/mAP', 0) > 0)
    assert [*report['sizes']] == (['bbox'] if other else ['bbox', 'segm'])
    ends = {'AP': '', 'AP50': '_50', 'AP75': '_75', 'AP small': '_s', 'AP medium': '_m', 'AP large': '_l'}
    for kind, values in report['sizes'].items():
        found = {name: -1 if value is None else round(value, 3) for name, value in values.items()}
        assert found == {name: report['metrics'][f'coco/{kind}_mAP{end}'] for name, end in ends.items()}
    assert json.loads((tmp_path / 'out/report.json').read_text()) == json.loads(json.dumps(report))
    drawn = len(report['pictures']) + sum(map(len, report['labels'].values()))
    assert (tmp_path / 'out/index.html').read_text().count('<image') == drawn > 0


def test_the_keys_of_a_picture_are_in_one_order_in_all_processes():
    """The config is in report.json, and equal tests write equal bytes."""
    pack = dict(type='PackDetInputs', meta_keys=('flip', 'img_id', 'text'))
    cfg = Config(dict(default_scope='mmdet', test_evaluator=[], test_dataloader=dict(dataset=dict(pipeline=[pack]))))
    add_coco_metric(cfg)
    keys = 'flip', 'img_id', 'text', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'instances'
    assert cfg.test_dataloader.dataset.pipeline[-1].meta_keys == keys


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_one_kind_alone_is_drawn(detector, tmp_path, kind):
    """Labels as uncompressed RLE stopped the report on boxes. A model of masks alone, as SOLO, has empty boxes."""
    path = detector.test_evaluator.ann_file
    with edited_json(Path(path)) as coco:
        for one in coco['annotations']:
            one['segmentation'] = dict(size=[SIZE, SIZE], counts=[SIZE * 6, SIZE * 20, SIZE * (SIZE - 26)])
    detector.test_evaluator.metric = kind
    report = guessed(detector, tmp_path / 'out', guess=dict(has_no_boxes=kind == 'segm'))
    assert [*report['sizes']] == [kind]
    page = (tmp_path / 'out/index.html').read_text()
    assert (page.count('<path') > 0) == (kind == 'segm')
    assert ' width="0' not in page


@pytest.mark.parametrize('is_turned', [True, False])
def test_thumbnails_are_read_as_the_config_reads_pictures(detector, tmp_path, is_turned):
    """Boxes of pictures that the config does not turn were drawn on turned pictures."""
    for path in (tmp_path / 'own').rglob('*.png'):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        with Image.open(path) as picture:
            picture.crop((0, 0, SIZE, SIZE - 6)).save(path, exif=exif)
    detector.test_evaluator.metric = 'bbox'  # the labels state the size of masks before the turn
    detector.test_dataloader.dataset.pipeline[0].color_type = 'color' if is_turned else 'color_ignore_orientation'
    guessed(detector, tmp_path / 'out')
    addresses = re.findall(r'data:image/webp;base64,([^"]+)', (tmp_path / 'out/index.html').read_text())
    (first, *_) = [cv2.imdecode(np.frombuffer(base64.b64decode(one), np.uint8), 1).shape[:2] for one in addresses]
    assert first == ((SIZE, SIZE - 6) if is_turned else (SIZE - 6, SIZE))


def test_runs_are_compared_by_class_and_setting(detector, tmp_path, monkeypatch):
    """The report to compare is read once, before the test."""
    first = guessed(detector, tmp_path / 'first/report')
    detector.test_dataloader.batch_size = 2
    read, read_bytes = Counter(), Path.read_bytes
    monkeypatch.setattr(Path, 'read_bytes', lambda path: read.update([path]) or read_bytes(path))
    report = guessed(detector, tmp_path / 'second', compare=[tmp_path / 'first'])
    assert read[tmp_path / 'first/report/report.json'] == 1
    (other,) = report['compared']
    assert other['name'] == str(tmp_path / 'first')
    assert other['values']['nut'] == first['classes'][0]['AP']
    assert other['settings'].splitlines() == ['test_dataloader.batch_size', '  - 8', '  + 2']
    page = (tmp_path / 'second/index.html').read_text()
    assert '/first</button>' in page
    with pytest.raises(ValueError, match=r'--compare takes a folder with report.json or report/report.json, got'):
        guessed(detector, tmp_path / 'third', compare=[tmp_path])
    with pytest.raises(FileExistsError, match=r'report.json is there already'):
        guessed(detector, tmp_path / 'second')


@pytest.mark.parametrize(('kind', 'column'), [('bbox', 'AP of boxes'), ('segm', 'AP')])
def test_runs_are_compared_by_a_common_kind_of_ap(detector, tmp_path, kind, column):
    """A detector of boxes was compared by the AP of another's masks."""
    first = guessed(detector, tmp_path / 'first')
    sizes = {kind: first['sizes'][kind]}
    (tmp_path / 'first/report.json').write_text(json.dumps(dict(first, sizes=sizes)))
    report = guessed(detector, tmp_path / 'second', compare=[tmp_path / 'first'])
    assert list_main_metrics(report, report['compared_kind'])['all: AP'] == report['sizes'][kind]['AP']
    assert list_main_metrics(report, report['compared_kind'])['nut'] == report['classes'][0][column]
    assert ('AP is that of boxes' in (tmp_path / 'second/index.html').read_text()) == (kind == 'bbox')
    assert find_common_kind([report, dict(sizes={})]) is None
    assert list_main_metrics(report, None) == {}


def test_pictures_of_the_report_before_are_not_counted(tmp_path):
    """A picture that is no longer tested stayed in the folder of labels, and in the IoU."""
    root = make_own_data(tmp_path / 'own')
    cfg = own_config(segmentation(root), tmp_path / 'work')
    before = guessed(cfg, tmp_path / 'out')
    cfg.test_dataloader.dataset.indices = 1
    after = guessed(cfg, tmp_path / 'out', overwrite=True)
    assert (len(before['pictures']), len(after['pictures'])) == (2, 1)
    assert round(100 * after['overall']['mIoU'], 2) == pytest.approx(after['metrics']['mIoU'])


@pytest.mark.parametrize('ignored', [255, 7])
def test_a_segmentor_has_the_numbers_of_the_evaluator(tmp_path, ignored, monkeypatch):
    """An ignored value other than 255 stopped the report, or was counted as a class."""
    root = make_own_data(tmp_path / 'own')
    for path in map(str, (root / 'labels').rglob('*.png')):
        label = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
        label[:9] = ignored
        cv2.imwrite(path, label)
    cfg = own_config(segmentation(root, ignored=ignored), tmp_path / 'work')
    waits, fsync = [], os.fsync
    monkeypatch.setattr(os, 'fsync', lambda handle: waits.append(handle) or fsync(handle))
    report = guessed(cfg, tmp_path / 'out')
    assert len(waits) == 2 * len(('classes.txt', 'report.json', 'index.html'))  # and the folder of each
    assert {name: round(100 * value, 2) for name, value in report['overall'].items()} == pytest.approx(
        report['metrics']
    )
    assert 0.5 < report['overall']['mIoU'] < 1
    assert sum(row['pixels'] for row in report['classes']) == 2 * (SIZE - 9) * SIZE
    assert (tmp_path / 'out/index.html').read_text().count('src="data:image/webp;base64,') == 2
    (tmp_path / 'boxes.json').write_text('{"task": "detection"}')
    with pytest.raises(ValueError, match=r"--compare takes reports of segmentation, got '.*' of detection"):
        guessed(cfg, tmp_path / 'new', compare=[tmp_path / 'boxes.json'])


def test_a_classifier_of_mmpretrain(tmp_path):
    """mmpretrain is not installed here: the hook gets its samples alone."""
    samples = [BaseDataElement(metainfo=dict(img_path=f'{row}.jpg'), gt_label=torch.tensor([1]),
                               pred_score=torch.tensor([0.9 - 0.1 * row, 0.1])) for row in range(2)]  # fmt: skip
    dataset = type('Samples', (list,), dict(metainfo=dict(classes=('cat', 'dog'))))(samples)
    hooks, cfg, loader = [], Config(dict(default_scope='mmpretrain')), SimpleNamespace(dataset=dataset)

    def report():
        return report_on_test(runner, tmp_path, 'epoch_1.pth', overwrite=True)

    def test():
        hooks[-2].after_test_iter(runner, 0, outputs=samples)  # the last is of `run`
        return {'accuracy/top1': 0.0, 'single-label/f1': float('nan'), 'confusion_matrix/result': torch.zeros(2, 2)}

    runner = SimpleNamespace(
        cfg=cfg, test_dataloader=loader, register_hook=lambda hook, **_: hooks.append(hook), test=test
    )
    assert report()['overall'] == dict(top1=0.0)
    assert report()['metrics'] == {'accuracy/top1': 0.0, 'single-label/f1': None}  # numbers of JSON
    assert [Path(row['file']).name for row in report()['pictures']] == ['0.jpg', '1.jpg']
    samples[1].gt_label = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r'one class for a picture, got several or none for 1.jpg'):
        report()
    cfg.default_scope = 'mmrotate'
    with pytest.raises(ValueError, match=r"a report takes a model of mmdet, .*, got default_scope='mmrotate'"):
        report()


def find_the_nut(self, inputs, samples, rescale=True):
    for sample in samples:
        mask = torch.zeros(1, *sample.ori_shape, dtype=torch.bool)
        mask[0, 6:30, 4:28] = True
        found = dict(bboxes=torch.tensor([[4.0, 6, 28, 30]]), scores=torch.tensor([0.9]), labels=torch.tensor([0]))
        sample.pred_instances = InstanceData(masks=mask, **found)
    return samples


def test_tool_and_python_report_on_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr('mmdet.models.MaskRCNN.predict', find_the_nut)
    root, work = make_own_data(tmp_path / 'own'), tmp_path / 'work'
    config, _, *options = map(str, detection(root))
    checkpoint = save_random_model(own_config([config, '', *options], work), tmp_path)
    checkpoint_bytes = Path(checkpoint).read_bytes()
    model = load(config, checkpoint, options=parse_options(options), work_dir=work)
    assert model.predict(root / 'images/val/0.png')[0].score_thr == 0.3
    words = [config, checkpoint, '--out-dir', tmp_path / 'out', '--work-dir', work, '--cfg-options', *options]
    result = run_well('tools/report.py', *words)
    assert result.stdout.splitlines()[-2:] == [
        f'best threshold 0.44; for the best of each class: --score-thr {tmp_path / "out/report.json"}',
        str(tmp_path / 'out/index.html'),
    ]
    assert 'evaluating segm' in result.stderr  # the progress
    assert 'report.json is there already' in error_of('tools/report.py', *words)
    report = model.report(tmp_path / 'again', compare=[tmp_path / 'out'])
    assert report['compared'] == [
        dict(name=str(tmp_path / 'out'), values=list_main_metrics(report, 'segm'), settings='')
    ]
    assert checkpoint_bytes == Path(checkpoint).read_bytes()
    assert report['best']['threshold'] == 0.44
    (prediction,) = model.predict(root / 'images/val/0.png', score_thr=tmp_path / 'again')
    assert prediction.score_thr['nut'] == report['classes'][0]['threshold'] == 0.44
    words = [root / 'images/val/0.png', config, '--weights', checkpoint, '--score-thr', tmp_path / 'out/report.json']
    run_well('tools/infer.py', *words, '--out-dir', tmp_path / 'seen', '--cfg-options', *options)
    assert len(json.loads((tmp_path / 'seen/results.json').read_text())) == len(prediction.boxes) == 1


def test_a_training_ends_with_a_report(tmp_path):
    """The report stopped at a picture that the training skips."""
    words = detection(root := make_own_data(tmp_path / 'own'))
    (root / 'images/val/1.png').write_bytes(b'')
    result = run_well('tools/train.py', *words, '--report', '--skip-unreadable', '--work-dir', tmp_path / 'work')
    assert result.stdout.splitlines()[-1] == str(tmp_path / 'work/report/index.html')
    report = json.loads((tmp_path / 'work/report/report.json').read_text())
    assert report['checkpoint'] == str(tmp_path / 'work/epoch_1.pth')
    assert {'loss', 'loss_mask'} <= report['log']['losses'].keys()
    assert report['log']['rates'].keys() == {'lr'}
    assert report['log']['metrics']['coco/segm_mAP'][-1] == [1, report['metrics']['coco/segm_mAP']]
