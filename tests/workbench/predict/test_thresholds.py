"""The lowest scores of objects by class are those of a report."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from swin_backbone.workbench.predict.results import ResultsWriter
from swin_backbone.workbench.predict.thresholds import choose_score_thr, list_thresholds, read_score_thr

CLASSES = 'nut', 'bolt'


def write_report(folder, **more):
    rows = [dict(name='bolt', threshold=0.6), dict(name='nut', threshold=None)]
    path = folder / 'report.json'
    path.write_text(json.dumps(dict(best=dict(threshold=0.4), classes=rows) | more))
    return path


def test_thresholds_of_a_report(tmp_path):
    path = write_report(tmp_path)
    assert read_score_thr(path) == read_score_thr(str(tmp_path)) == dict(bolt=0.6, nut=0.4)
    assert list_thresholds(read_score_thr(path), CLASSES).tolist() == [0.4, 0.6]
    with pytest.raises(ValueError, match=r"score_thr takes thresholds of the classes nut, gear, got \['bolt', 'nut'\]"):
        list_thresholds(read_score_thr(path), ('nut', 'gear'))


def test_thresholds_of_other_classes_are_refused_before_a_prediction(tmp_path):
    """Each picture failed alone, and an exported folder kept thresholds that it could not take."""
    report = write_report(tmp_path)
    predictor = SimpleNamespace(scope='mmdet', model=None, meta=dict(classes=('nut', 'gear')), score_thr=0.3)
    assert choose_score_thr(predictor, None) == 0.3
    assert choose_score_thr(SimpleNamespace(scope='mmseg', meta=predictor.meta), report)
    for use in (choose_score_thr, lambda *arguments: ResultsWriter(tmp_path, *arguments)):
        with pytest.raises(ValueError, match='score_thr takes thresholds of the classes nut, gear'):
            use(predictor, report)


def test_a_number_is_for_all_classes():
    assert read_score_thr(np.float32(0.5)) == 0.5
    assert list_thresholds(0.5, CLASSES).tolist() == [0.5, 0.5]


@pytest.mark.parametrize('given', [-0.1, 1.5, 'none.json'])
def test_other_values_are_refused(given):
    with pytest.raises(ValueError, match=r'score_thr takes a number from 0 to 1, or .*report\.json'):
        read_score_thr(given)


@pytest.mark.parametrize('given', [7, float('nan'), 'high', None])
def test_other_values_of_a_class_are_refused(tmp_path, given):
    with pytest.raises((ValueError, TypeError), match=r"score_thr\['bolt'\] takes a number from 0 to 1"):
        read_score_thr(dict(nut=0.5, bolt=given))
    with pytest.raises(ValueError, match=r'or the report\.json of a detector'):
        read_score_thr(write_report(tmp_path, best=dict(threshold=given)))


def test_a_report_of_a_segmentor_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'or the report\.json of a detector'):
        read_score_thr(write_report(tmp_path, best=None))
