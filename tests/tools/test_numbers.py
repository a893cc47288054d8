"""Numbers that tools/test.py and tools/infer.py print and write."""

import json
import pickle
import re
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers import edited_json
from helpers.in_process import error_of, run_well
from helpers.kernels import count_blocks
from helpers.openmmlab.jobs import load_config
from helpers.openmmlab.own_data import detection, make_own_data, read_coco, segmentation
from helpers.openmmlab.random_models import DETECTION, save_random_model
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement, InstanceData
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from swin_backbone import accelerate, load
from swin_backbone.openmmlab.config_parts import find_class
from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.data.annotations import find_format
from swin_backbone.workbench.predict.results import ResultsWriter
from swin_backbone.workbench.runner.hooks.validation import MaskAreasHook
from swin_backbone.workbench.runner.prediction_outputs import write_coco_results


@pytest.fixture(scope='module')
def detector(tmp_path_factory):
    """Words of a command line for a detector, its data with pictures of two shapes, and a random checkpoint."""
    root = make_own_data(tmp_path_factory.mktemp('own'))
    with edited_json(root / 'val.json') as coco:
        coco['images'][1]['height'] = 36
    cv2.imwrite(str(root / 'images' / 'val' / '1.png'), cv2.imread(str(root / 'images' / 'val' / '1.png'))[:36])
    config, _, *options = map(str, detection(root))
    checkpoint = save_random_model(load_config(config, None, parse_options(options), 'none'), root)
    return root, checkpoint, [config, checkpoint, '--cfg-options', *options]


def test_predictions_do_not_depend_on_the_batch(detector, tmp_path):
    *_, words = detector
    for size in (1, 8):
        more = [f'test_dataloader.batch_size={size}', f'test_evaluator.outfile_prefix={tmp_path}/{size}']
        run_well('tools/test.py', *words, *more, '--work-dir', tmp_path, '--out', tmp_path / f'{size}.pkl')
        assert not any('bbox' in item for item in json.loads((tmp_path / f'{size}.segm.json').read_text()))
    alone, together = (pickle.loads((tmp_path / f'{size}.pkl').read_bytes()) for size in (1, 8))
    assert [item['img_id'] for item in alone] == [item['img_id'] for item in together] == [0, 1]
    for first, second in zip(alone, together):
        assert len(first['pred_instances']['scores'])
        for name in ('scores', 'bboxes'):
            assert torch.equal(first['pred_instances'][name], second['pred_instances'][name])


def test_eight_bits_of_test_infer_and_report(detector, tmp_path, monkeypatch):
    """Also with `--amp` and `--compile`. A hook of the config does not take eight bits back."""
    root, checkpoint, (config, _, *options) = detector
    dtypes, words = count_blocks(monkeypatch), [*options, '--precision', 'int8']
    (tmp_path / 'config.py').write_text(f"_base_ = {config!r}\ncustom_hooks = [dict(type='AccelerateHook')]")
    run_well('tools/test.py', tmp_path / 'config.py', checkpoint, *words, '--work-dir', tmp_path)
    words += ['--amp', '--compile', '--out-dir', tmp_path]
    run_well('tools/infer.py', root / 'images' / 'val', config, '--weights', checkpoint, *words)
    assert dtypes == 4 * 4 * [torch.int8]
    model = load(config, checkpoint, options=parse_options(options[1:]))
    accelerate(model.module, precision='int8')
    model.predict(root / 'images' / 'val' / '0.png')
    assert dtypes == 5 * 4 * [torch.int8]
    own = shutil.copy(checkpoint, tmp_path / 'own.pth')  # the report stores a threshold
    run_well('tools/report.py', config, own, *options, '--precision', 'int8', '--out-dir', tmp_path / 'report')
    assert dtypes == 7 * 4 * [torch.int8]


@pytest.mark.parametrize(
    ('tool', 'more'), [('test', []), ('test', ['--precision', 'int8']), ('report', []), ('train', [])]
)
def test_classes_in_another_order_stop_with_both_lists(tool, more, tmp_path, record_fault):
    """The model numbers its classes in the order of the checkpoint."""
    root = make_own_data(tmp_path / 'own')
    config, _, *options = map(str, segmentation(root))
    checkpoint = save_random_model(load_config(config, None, parse_options(options), 'none'), tmp_path)
    config, _, *options = map(str, segmentation(root, classes=('nut', 'ground')))
    given = ['--weights', checkpoint] if tool == 'train' else [checkpoint]
    given += ['--out-dir', tmp_path / 'report'] if tool == 'report' else []
    error = error_of(f'tools/{tool}.py', config, *given, *more, '--work-dir', tmp_path, '--cfg-options', *options)
    assert f'{str(checkpoint)!r} has the classes of the data in another order' in error
    assert 'its classes are ground, nut; those of the data are nut, ground' in error
    record_fault('bad_commands')


@pytest.mark.parametrize('first', [0, 1])
def test_both_tools_write_one_numbering_of_labels(first, tmp_path):
    """mmseg itself adds 1 with reduce_zero_label."""
    root = make_own_data(tmp_path / 'own')
    config, _, *options = map(str, segmentation(root, reduce_zero_label=True))
    cfg = load_config(config, None, parse_options(options), 'none')
    checkpoint = save_random_model(cfg, tmp_path)
    more = ['--first-label', first, '--cfg-options', *options]
    run_well('tools/test.py', config, checkpoint, '--out', tmp_path / 'tested', '--work-dir', tmp_path, *more)
    run_well('tools/infer.py', root / 'images' / 'val', config, '--weights', checkpoint, '--out-dir', tmp_path, *more)
    files = sorted((tmp_path / 'tested').glob('*.png'))
    assert [path.name for path in files] == ['0.png', '1.png']
    for path in files:
        assert path.read_bytes() == (tmp_path / 'labels' / path.name).read_bytes()
        assert set(np.unique(np.asarray(Image.open(path)))) <= {first, first + 1}


def ids_of(out):
    images = json.loads((out / 'images.json').read_text())
    results = json.loads((out / 'results.json').read_text())
    return images, {one['image_id'] for one in results}, {one['category_id'] for one in results}


def test_results_have_the_ids_of_the_users_json(detector, tmp_path, record_fault):
    root, checkpoint, (config, _, _, *options) = detector
    coco = read_coco(root, 'val')
    for number, image in enumerate(coco['images']):
        image.update(id=40 + number, file_name=f'val/{image["file_name"]}')
    truth = tmp_path / 'truth.json'
    truth.write_text(json.dumps(coco))
    command = ['tools/infer.py', root / 'images' / 'val', config, '--weights', checkpoint, '--score-thr', 0.01]
    more = ['--cfg-options', *options]
    out = tmp_path / 'own'
    result = run_well(*command, '--out-dir', out, '--annotations', truth, *more)
    assert 'takes the ids' not in result.stdout
    images, image_ids, category_ids = ids_of(out)
    assert images['info']['description'] == f'ids of {truth}'
    assert image_ids == {image['id'] for image in images['images']} == {40, 41}
    assert category_ids == {3, 7}
    api = COCO(str(truth))
    assert len(api.loadRes(str(out / 'results.json')).anns)

    result = run_well(*command, '--out-dir', tmp_path / 'numbers', *more)
    assert '--annotations FILE takes the ids of your own COCO JSON' in result.stdout
    images, image_ids, category_ids = ids_of(tmp_path / 'numbers')
    assert images['info']['description'].startswith('ids of pictures from 1 in this file')
    assert (image_ids, category_ids) == ({1, 2}, {1, 2})

    trained = torch.load(checkpoint)
    trained['meta'].update(category_ids=[3, 7])
    torch.save(trained, tmp_path / 'trained.pth')
    command[command.index(checkpoint)] = tmp_path / 'trained.pth'
    run_well(*command, '--out-dir', tmp_path / 'trained', *more)
    assert ids_of(tmp_path / 'trained')[1:] == ({1, 2}, {3, 7})
    model = load(config, tmp_path / 'trained.pth', options=parse_options(options))
    for annotations, folder, ids in ((truth, out, (None, None)), (None, tmp_path / 'trained', (1, 2))):
        predictions = model.predict(root / 'images' / 'val', 0.01, annotations=annotations)
        found = [one for p, number in zip(predictions, ids) for one in p.coco(number)]
        assert found == json.loads((folder / 'results.json').read_text())
    with pytest.raises(ValueError, match=r'coco takes an image_id, or predict\(..., annotations=JSON\)'):
        predictions[0].coco()

    wrong = [
        (dict(coco, images=coco['images'][:1]), 'has no image with the file_name of .*1.png'),
        (dict(coco, categories=coco['categories'][:1]), "has no category 'bolt' of the model; it has nut"),
        (coco['images'], "no JSON with images and categories in COCO's format"),
    ]
    for data, message in wrong:
        truth.write_text(json.dumps(data))
        error = error_of(*command, '--out-dir', tmp_path / 'wrong', '--annotations', truth, *more)
        assert re.search(message, error), error
        record_fault('annotations')
    with pytest.raises(ValueError, match='--annotations takes a detector'):
        ResultsWriter(
            tmp_path, SimpleNamespace(scope='mmseg', model=None, meta=dict(classes=())), 0.3, annotations=truth
        )


def test_pycocotools_finds_the_printed_ap_in_the_files(tmp_path):
    """The masks are of medium size, their boxes are large."""
    truth = dict(images=[dict(id=4, file_name='a.png', height=200, width=200)], categories=[dict(id=3, name='nut')],
                 annotations=[])  # fmt: skip
    masks = np.zeros((2, 200, 200), np.uint8)
    for number, mask in enumerate(masks):
        top = 10 + 100 * number
        mask[top : top + 8] = mask[top : top + 50, :8] = 1
        rle = coco_mask.encode(np.asfortranarray(mask))
        truth['annotations'].append(
            dict(id=number + 1, image_id=4, category_id=3, bbox=[0, top, 200, 50], area=int(mask.sum()), iscrowd=0,
                 segmentation=dict(size=[200, 200], counts=rle['counts'].decode()))
        )  # fmt: skip
    masks[1, 110:113] = 0  # found in part
    found = dict(bboxes=torch.tensor([[0.0, 10, 200, 60], [0, 110, 200, 160]]), scores=torch.tensor([0.8, 0.9]),
                 labels=torch.tensor([0, 0]), masks=torch.from_numpy(masks).bool())  # fmt: skip
    (tmp_path / 'truth.json').write_text(json.dumps(truth))
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'truth.json'), metric=['bbox', 'segm'],
                  outfile_prefix=str(tmp_path / 'res'))  # fmt: skip
    with DefaultScope.overwrite_default_scope('mmdet'):
        evaluator = Evaluator(metric)
    evaluator.dataset_meta = dict(classes=('nut',))
    evaluator.process([BaseDataElement(metainfo=dict(img_id=4, ori_shape=(200, 200)), pred_instances=found)])
    printed = evaluator.evaluate(1)
    MaskAreasHook().after_test_epoch(SimpleNamespace(test_loop=SimpleNamespace(evaluator=evaluator)))
    for kind in ('bbox', 'segm'):
        require_printed(printed, tmp_path / 'truth.json', json.loads((tmp_path / f'res.{kind}.json').read_text()), kind)


def test_a_file_of_another_name_stays(tmp_path, monkeypatch):
    """A metric without outfile_prefix writes no file."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / 'None.segm.json'
    file.write_text('[{"bbox": [0, 0, 1, 1]}]')
    evaluator = SimpleNamespace(metrics=[SimpleNamespace(outfile_prefix=None), SimpleNamespace()])
    MaskAreasHook().after_test_epoch(SimpleNamespace(test_loop=SimpleNamespace(evaluator=evaluator)))
    assert 'bbox' in file.read_text()


def require_printed(printed, truth, objects, kind):
    """Compare the figures of a test, also by size, with those of pycocotools."""
    api = COCO(str(truth))
    evaluation = COCOeval(api, api.loadRes(objects), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    names = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
    assert [printed[f'coco/{kind}_{name}'] for name in names] == pytest.approx(evaluation.stats[:6], abs=1e-3)


def find_squares(self, inputs, samples, rescale=True):
    """Find the bright square of `make_own_data` without its upper rows, as a nut, and with a lower score as a bolt."""
    for picture_CHW, sample in zip(inputs, samples):
        height, width = sample.img_shape
        grey_HW = cv2.resize(picture_CHW.mean(0)[:height, :width].numpy(), sample.ori_shape[::-1])
        mask_HW = grey_HW > (grey_HW.min() + grey_HW.max()) / 2
        y, x = np.nonzero(mask_HW)
        mask_HW[: y.min() + 5] = False
        box = torch.tensor([[x.min(), y.min() + 5, x.max() + 1, y.max() + 1]]).float()
        sample.pred_instances = InstanceData(bboxes=box.repeat(2, 1), scores=torch.tensor([0.9, 0.4]),
                                             labels=torch.tensor([0, 1]),
                                             masks=torch.from_numpy(np.stack([mask_HW] * 2)))  # fmt: skip
    return samples


def test_pycocotools_finds_the_printed_ap_with_the_original_json(detector, tmp_path, monkeypatch):
    from mmdet.models import MaskRCNN

    monkeypatch.setattr(MaskRCNN, 'predict', find_squares)
    root, checkpoint, (config, _, _, *options) = detector
    model = load(config, checkpoint, options=parse_options(options), work_dir=tmp_path / 'work')
    words = [config, checkpoint, '--out', tmp_path / 'res.json', '--work-dir', tmp_path, '--cfg-options', *options]
    lines = run_well('tools/test.py', *words).stdout.splitlines()
    printed = {
        name: float(value) for name, _, value in (line.partition(': ') for line in lines) if name.startswith('coco/')
    }
    for kind, name in (('bbox', 'res.json'), ('segm', 'res.segm.json')):
        require_printed(printed, root / 'val.json', json.loads((tmp_path / name).read_text()), kind)
    assert not list(tmp_path.glob('*.bbox.json'))
    (tmp_path / 'res.json').unlink()
    assert 'res.segm.json is there already' in error_of('tools/test.py', *words)
    words[3] = root / 'val.json'
    assert 'val.json is read here' in error_of('tools/test.py', *words, '--overwrite')
    assert 0.1 < printed['coco/bbox_mAP_s'] < 0.9
    predictions = model.predict(root / 'images' / 'val', annotations=root / 'val.json')
    objects = [one for p in predictions for one in p.coco()]
    require_printed(printed, root / 'val.json', objects, 'bbox')
    for one in objects:
        del one['bbox']
    require_printed(printed, root / 'val.json', objects, 'segm')


@pytest.mark.parametrize('without', ['annotations', 'CocoMetric'])
def test_results_of_pictures_without_annotations(detector, tmp_path, without):
    """As of COCO's test-dev."""
    root, *_ = detector
    names = Config.fromfile(DETECTION).train_dataloader.dataset.metainfo.classes
    categories = [dict(id=7 + 2 * number, name=name) for number, name in enumerate(names)]
    truth = tmp_path / 'test-dev.json'
    truth.write_text(json.dumps(dict(images=read_coco(root, 'val')['images'], categories=categories)))
    words = [DETECTION, save_random_model(DETECTION, tmp_path), '--cfg-options', f'test_evaluator.ann_file={truth}']
    words += [f'test_dataloader.dataset.{key}' for key in ('data_root=', f'ann_file={truth}')]
    words += [f'test_dataloader.dataset.data_prefix.img={root}/images/val', 'test_evaluator.format_only=True']
    words += ['test_dataloader.num_workers=0', 'test_dataloader.persistent_workers=False']
    command = ['tools/test.py', '--out', tmp_path / 'res.json', '--work-dir', tmp_path, *words]
    if without == 'CocoMetric':
        error = error_of(*command, 'test_evaluator.type=VOCMetric')
        assert '--out F.json takes a config with CocoMetric' in error
        return
    run_well(*command)
    found = json.loads((tmp_path / 'res.json').read_text())
    assert {one['image_id'] for one in found} == {0, 1}
    assert {one['category_id'] for one in found} <= {7, 9, 11, 13}


def test_a_panoptic_model_is_tested_on_cocos_files(tmp_path):
    """COCO's panoptic annotations have no ids, and were refused."""
    cfg = Config(dict(test_evaluator=[dict(type='CocoPanopticMetric'), dict(type='CocoMetric')], default_scope='mmdet'))
    write_coco_results(cfg, tmp_path / 'res')
    assert {metric.outfile_prefix for metric in cfg.test_evaluator} == {str(tmp_path / 'res')}
    with DefaultScope.overwrite_default_scope('mmdet'):
        assert find_format(find_class(dict(type='CocoPanopticDataset'))) is None
        assert find_format(find_class(dict(type='CocoDataset'))) == 'COCO'
