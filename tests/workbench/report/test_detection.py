"""AP is pycocotools' own, kinds of errors and costs are TIDE's, and each error of a drawn scene has its place."""

import contextlib
import copy
import io

import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval, Params
from scenes import annotation, as_coco, result, scene

from swin_backbone.workbench.report import analyse, detection
from swin_backbone.workbench.report.analyse import report_detection
from swin_backbone.workbench.report.errors import DOUBTS, KINDS, find_costs, find_errors

# Counts and gained AP of tidecv 1.0.1, changed as the paper: the surest error of an object is fixed for each kind alone
TIDE = {
    0: dict(**{'class': (13, 0.049158)}, place=(45, 0.15939), both=(12, 0.014263), double=(22, 0.016886),
            background=(58, 0.031879), missed=(31, 0.106418)),
    1: dict(**{'class': (12, 0.055352)}, place=(42, 0.231251), both=(26, 0.015862), double=(16, 0.010152),
            background=(41, 0.024151), missed=(25, 0.092867)),
    4: dict(**{'class': (12, 0.049188)}, place=(39, 0.174707), both=(14, 0.021584), double=(23, 0.014256),
            background=(42, 0.038414), missed=(27, 0.095826)),
}  # fmt: skip


def evaluate(truth, results, iou_type='bbox', **settings):
    params = Params(iou_type)
    params.__dict__.update(settings)
    return detection.evaluate(truth, results, params)


def report_on(truth, results, **settings):
    return report_detection([evaluate(truth, results, **settings)], files_of(truth))


def files_of(truth):
    return {number: f'/data/{number}.jpg' for number in truth.imgs}


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
@pytest.mark.parametrize(
    ('settings', 'crowd'),
    [({}, 0.0), (dict(maxDets=[100, 300, 1000]), 0.3), (dict(maxDets=[1, 2, 3], iouThrs=np.array([0.3, 0.75])), 0.1)],
)
def test_ap_is_that_of_pycocotools_to_the_last_digit(kind, settings, crowd):
    truth, results = scene(5, crowd=crowd)
    with contextlib.redirect_stdout(io.StringIO()):  # all classes together, as mmdet's CocoMetric
        left_out = dict(bbox='segmentation', segm='bbox')[kind]
        found = [{key: value for key, value in one.items() if key != left_out} for one in results]
        expected = COCOeval(truth, truth.loadRes(found), kind)
        expected.params.__dict__.update(copy.deepcopy(settings))
        expected.evaluate()
        expected.accumulate()
    evaluation = evaluate(truth, results, kind, **copy.deepcopy(settings))
    assert (evaluation.precision == expected.eval['precision']).all()
    with contextlib.redirect_stdout(io.StringIO()):
        expected.params.maxDets = [1, 10, 100]  # `summarize` returns AP for 100 alone, here of the last
        expected.summarize()
    assert [-1 if one is None else one for one in evaluation.stats] == expected.stats[:6].tolist()
    assert evaluation.precision.max() > 0.1
    report, _ = report_on(truth, results, iou_type=kind, **copy.deepcopy(settings))
    assert [-1 if one is None else one for one in report['sizes'][kind].values()] == expected.stats[:6].tolist()
    by_class = expected.eval['precision'][..., 0, -1]
    assert [row['AP'] for row in report['classes']] == [np.mean(by_class[:, :, label]) for label in range(4)]


def test_nothing_is_compared_where_no_object_is(monkeypatch):
    """Two thirds of the time of a report were for predictions of a class that their picture lacks."""
    compared, compare = [], COCOeval.evaluateImg
    monkeypatch.setattr(COCOeval, 'evaluateImg', lambda self, *key: compared.append(key[:2]) or compare(self, *key))
    truth = as_coco(range(3), [annotation(1, 0, 0, [0, 0, 9, 9])], 2)
    results = [result(image, label, [0, 0, 9, 9], 0.5) for image in range(3) for label in range(2)]
    evaluation = evaluate(truth, results)
    assert {*compared} == {(0, 5)}  # image_id, category_id
    assert len(evaluation.predictions.score) == 6


def test_a_picture_with_more_than_a_hundred_objects_has_one_ap():
    """The AP of COCO's `summarize` counts 100 predictions of a picture, and the AP of a class all."""
    boxes = [[60 * (n % 15), 60 * (n // 15), 30, 30] for n in range(150)]
    truth = as_coco([1], [annotation(n, 1, 0, box) for n, box in enumerate(boxes, 1)], 1)
    results = [result(1, 0, box, 1 - n / 1000) for n, box in enumerate(boxes)]
    report, _ = report_on(truth, results, maxDets=[100, 300, 1000])
    assert report['overall']['AP'] == report['classes'][0]['AP'] == pytest.approx(1)
    assert report['per_picture'] == dict(objects=150, predictions=1000)


@pytest.mark.parametrize('seed', TIDE)
def test_kinds_and_costs_are_those_of_tide(seed):
    truth, results = scene(seed)
    evaluation = evaluate(truth, results)
    errors = find_errors(evaluation, 0.5)
    counts = dict(zip(KINDS, np.bincount(errors.kind)), missed=errors.is_missed.sum())
    gains = find_costs(evaluation, errors)
    assert {kind: counts[kind] for kind in TIDE[seed]} == {kind: count for kind, (count, _) in TIDE[seed].items()}
    assert gains == pytest.approx({kind: gain for kind, (_, gain) in TIDE[seed].items()}, abs=3e-4)


def drawn_scene():
    """Return a scene with an error of each kind, in pictures of their own."""
    box, shifted, far = [10, 10, 40, 40], [30, 10, 40, 40], [120, 90, 30, 30]
    labels = [annotation(i, i, i % 2, box) for i in range(1, 8)]
    labels.append(annotation(8, 8, 0, far, crowd=1))
    results = [
        result(1, 1, box, 0.9),  # right
        result(2, 1, box, 0.9),  # another class
        result(3, 1, shifted, 0.9),  # beside
        result(4, 1, shifted, 0.9),  # both
        *(result(5, 1, box, 0.9), result(5, 1, box, 0.8)),  # double
        *(result(6, 0, box, 0.9), result(6, 0, far, 0.9)),  # background
        result(7, 1, far, 0.1),  # below the threshold, and the object is missed
        result(8, 1, far, 0.95),  # on a crowd of another class
    ]
    return as_coco(range(1, 9), labels, 2), results


def test_each_error_of_a_scene_is_found():
    truth, results = drawn_scene()
    report, drawings = report_on(truth, results)
    counts = {row['kind']: row['count'] for row in report['errors']}
    assert counts == {'class': 1, 'place': 1, 'both': 1, 'double': 1, 'background': 3, 'missed': 2}
    assert report['errors'] == sorted(report['errors'], key=lambda row: -row['cost'])
    assert report['best'] == pytest.approx(dict(threshold=0.85, F1=0.4, precision=3 / 8, recall=3 / 7))
    labels = {kind: [(one['image_id'], one.get('annotation_id')) for one in some]
              for kind, some in report['labels'].items()}  # fmt: skip
    no_label = [(6, None), (4, None)]
    assert labels == {'no label': no_label, 'other class': [(2, 2)], 'beside': [(3, 3)], 'not found': [(7, 7)]}
    (doubt,) = report['labels']['other class']
    assert (doubt['label'], doubt['predicted'], doubt['file']) == ('c0', 'c1', '/data/2.jpg')
    assert doubt['label_box'] == doubt['predicted_box'] == [10, 10, 40, 40]
    assert [row['image_id'] for row in report['pictures']] == [2, 3, 4, 7, 8, 6, 1, 5]
    assert [row['F1'] for row in report['pictures'][-3:]] == [pytest.approx(2 / 3), 1, 1]
    assert [*map(len, drawings.values())] == [*map(len, labels.values()), 8]
    counted = [(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 1, 2), (1, 2, 2), (2, 0, 1), (2, 1, 3)]
    assert report['confusion'] == dict(names=['c0', 'c1', 'background'], counts=counted)


def test_a_label_has_the_users_own_id():
    truth, results = drawn_scene()
    truth.anns[2]['own_id'] = 'labels/2.txt, object 1'
    report, _ = report_on(truth, results)
    assert [row['annotation_id'] for row in report['labels']['other class']] == ['labels/2.txt, object 1']
    assert [row['annotation_id'] for row in report['labels']['beside']] == [3]


def planted_scene(number):
    """Return labels with `number` errors of each kind, and the predictions of a good detector; the ids are by kind.

    A prediction that is right to the model has a score of 0.7 to 1, and an unsure one beside it.
    """
    rng, labels, results = np.random.default_rng(3), [], []
    for image, error in enumerate([*DOUBTS, '', ''] * number):
        for place, x in enumerate((10, 80)):
            box, label, id = [x, 10 + image % 40, 40, 50], (image + place) % 3, 2 * image + place
            score, wrong = rng.uniform(0.7, 1), place == 0
            moved = (np.array(box) + rng.normal(0, 1, 4)).tolist()
            if not (wrong and error == 'not found'):
                other = [box[0] + 14, box[1], *box[2:]]
                results += [result(image, label, moved, score), result(image, label, other, rng.uniform(0.1, 0.4))]
                results.append(result(image, (label + 1) % 3, box, rng.uniform(0.05, 0.3)))
            if wrong and error == 'beside':
                box = [box[0], box[1] + 24, *box[2:]]
            elif wrong and error == 'other class':
                label = (label + 1) % 3  # a class that the model gives too, with a low score
            if not (wrong and error == 'no label'):
                labels.append(annotation(id + 1, image, label, box))
    return as_coco(range(6 * number), labels, 3), results


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_planted_errors_are_listed_first(kind):
    truth, results = planted_scene(10)
    report, _ = report_on(truth, results, iou_type=kind)
    listed = {kind: [row['image_id'] % 6 for row in rows[:10]] for kind, rows in report['labels'].items()}
    assert listed == {kind: [number] * 10 for number, kind in enumerate(DOUBTS)}


def test_poor_masks_make_no_label_doubtful():
    box = [20.0, 20.0, 30.0, 30.0]
    truth = as_coco(range(5), [annotation(image + 1, image, 0, box) for image in range(5)], 1)
    results = [result(image, 0, [70.0, 70.0, 9.0, 9.0], 0.9) | dict(bbox=box) for image in range(5)]
    report, _ = report_detection([evaluate(truth, results, kind) for kind in ('bbox', 'segm')], files_of(truth))
    assert (report['overall']['AP'], report['labels']) == (0, {kind: [] for kind in DOUBTS})


def test_a_picture_that_is_not_tested_is_not_listed():
    """--skip-unreadable leaves it out. COCOeval counts its objects as missed."""
    truth = as_coco(range(3), [annotation(image + 1, image, 0, [10, 10, 40, 40]) for image in range(3)], 1)
    report, _ = report_detection([evaluate(truth, [result(0, 0, [10, 10, 40, 40], 0.9)])], {0: '0.jpg', 1: '1.jpg'})
    assert [row['file'] for row in report['pictures']] == ['1.jpg', '0.jpg']
    assert [row['file'] for row in report['labels']['not found']] == ['1.jpg']


@pytest.mark.parametrize('kinds', [['bbox'], ['bbox', 'segm']])
def test_predictions_are_compared_with_labels_once(monkeypatch, kinds):
    counted = []
    monkeypatch.setattr(analyse, 'find_errors', lambda *args: counted.append(args) or find_errors(*args))
    truth, results = planted_scene(2)
    report_detection([evaluate(truth, results, kind) for kind in kinds], files_of(truth))
    assert len(counted) == 1


def test_f1_of_each_threshold_is_that_of_the_predictions_above():
    truth, results = scene(7)
    report, _ = report_on(truth, results)
    for threshold in (0.0, 0.3, 0.62):
        evaluation = evaluate(truth, [one for one in results if one['score'] >= threshold])
        found, objects = len(evaluation.predictions.score), evaluation.totals.sum()
        f1 = 2 * (evaluation.predictions.match >= 0).sum() / (found + objects)
        assert report['curves']['all']['F1'][round(100 * threshold)] == pytest.approx(f1, abs=1e-4)
    assert report['best']['F1'] == pytest.approx(max(report['curves']['all']['F1']), abs=1e-4)


@pytest.mark.parametrize('empty', ['labels', 'predictions', 'both'])
def test_pictures_without_labels_or_predictions(empty):
    truth, results = scene(3, pictures=5)
    if empty != 'predictions':
        truth = as_coco(truth.imgs, [], 4)
    report, _ = report_on(truth, results if empty == 'labels' else [])
    assert {row['threshold'] for row in report['classes']} == {None}  # none is better than another
    assert report['overall']['AP'] == (0.0 if empty == 'predictions' else None)
    main = report['errors'][0]
    assert (main['kind'], main['cost']) == ('missed', 1) or empty != 'predictions'


def test_a_class_is_evaluated_in_its_pictures_alone(monkeypatch):
    """This bounds memory: COCOeval keeps an entry for each class, size and picture."""
    seen, evaluate_all = [], COCOeval.evaluate

    def counted(self):
        evaluate_all(self)
        seen.append(len(self.evalImgs))

    monkeypatch.setattr(COCOeval, 'evaluate', counted)
    truth = as_coco(range(100), [annotation(i + 1, i, i % 5, [0, 0, 9, 9]) for i in range(20)], 10)
    evaluate(truth, [result(90, 7, [0, 0, 9, 9], 0.5)])
    assert seen == [16] * 5 + [4]  # 4 sizes
