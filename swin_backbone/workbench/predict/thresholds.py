"""The lowest scores of objects: a number, or a number for each class, as a report finds them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ...checks import check_number, refusal
from ...outputs import REPORT_JSON

ScoreThr = Union[float, dict[str, float]]  # a dict has the names of classes
SCORE_THR = 0.3


def read_score_thr(score_thr: Union[ScoreThr, str, Path]) -> ScoreThr:
    """Return a threshold, or the thresholds of a report by class.

    Args:
        score_thr: a number from 0 to 1, thresholds by class, a report.json or its folder. A class that has no threshold
            in the report has that of all classes.

    Raises:
        ValueError: for a number below 0 or above 1, or a file that is no report of a detector.
        TypeError: for a threshold of a class that is no number.
    """
    if isinstance(score_thr, dict):
        return {name: _check_threshold(f'score_thr[{name!r}]', value) for name, value in score_thr.items()}
    if not isinstance(score_thr, (str, Path)):
        return _check_threshold('score_thr', score_thr)
    path = Path(score_thr, REPORT_JSON) if Path(score_thr).is_dir() else Path(score_thr)
    try:
        report = json.loads(path.read_bytes())
        shared = report['best']['threshold']
        rows = [(row['name'], row['threshold']) for row in report['classes']]
        return {name: _check_threshold(name, shared if value is None else value) for name, value in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        allowed = 'a number from 0 to 1, or the report.json of a detector'
        raise ValueError(refusal('score_thr', allowed, str(score_thr))) from error


def _check_threshold(name: str, value: Any) -> float:
    return check_number(name, value, 'a number from 0 to 1, or a report.json', lambda number: 0 <= number <= 1)


def choose_score_thr(predictor: Any, score_thr: Union[ScoreThr, str, Path, None]) -> ScoreThr:
    """Return the thresholds of a model's predictions. None: the thresholds of the predictor.

    Args:
        predictor: a `Predictor`, which has no type here: its file imports this one.

    Raises:
        ValueError: see `read_score_thr`; also for thresholds of other classes than a detector's.
    """
    chosen = predictor.score_thr if score_thr is None else read_score_thr(score_thr)
    if predictor.scope == 'mmdet':
        list_thresholds(chosen, predictor.meta['classes'])
    return chosen


def list_thresholds(score_thr: ScoreThr, classes: Sequence[str]) -> NDArray[Any]:
    """Return the lowest scores of the classes by label, (K,).

    Raises:
        ValueError: if a class has no threshold.
    """
    if not isinstance(score_thr, dict):
        return np.full(len(classes), score_thr)
    missing = [name for name in classes if name not in score_thr]
    if missing:
        raise ValueError(refusal('score_thr', f'thresholds of the classes {", ".join(classes)}', [*score_thr]))
    return np.array([score_thr[name] for name in classes])
