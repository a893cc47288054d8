"""Eight threads give the results of a single thread."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from helpers.export.small_exports import randomise
from helpers.openmmlab.jobs import open_predictor
from helpers.openmmlab.oracles import noise
from helpers.openmmlab.random_models import DETECTION, SEGMENTATION, save_random_model
from mmengine.config import Config

from swin_backbone.workbench.data.media import Frame, Medium


@pytest.fixture(scope='module')
def predictors(tmp_path_factory):
    """Return a random detector and a random segmentor. mmengine has a single default scope for all threads."""
    folder = tmp_path_factory.mktemp('models')
    return [
        open_predictor(Config.fromfile(path), str(save_random_model(path, folder, randomise)), 'cpu')
        for path in (DETECTION, SEGMENTATION)
    ]


def test_predictions_of_two_toolboxes(predictors):
    jobs = [(predictors[turn % 2], noise((64 + 4 * turn, 96), turn)) for turn in range(12)]

    def predict(job):
        predictor, pixels = job
        frame = Frame(Medium(None, 'a', False), 0, pixels, pixels.shape[:2])
        (sample,) = predictor.predict([predictor.preprocess(frame)])
        drawn = predictor.draw(frame, sample, 0.0)
        if predictor.scope == 'mmseg':
            return sample.seg_logits.data.numpy(), drawn
        return sample.pred_instances.bboxes.numpy(), sample.pred_instances.masks.numpy()  # mmdet draws random colours

    expected = [predict(job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        for results, one in zip(pool.map(predict, jobs), expected):
            assert all(map(np.array_equal, results, one))


def test_tiles_of_eight_pictures(tmp_path, predictors):
    tiles = pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')
    paths = [tmp_path / f'{number}.png' for number in range(8)]
    for number, path in enumerate(paths):
        cv2.imwrite(str(path), noise((150, 200), number))

    def infer(path, folder):
        (labels,) = (
            tiles.TiledInference(predictors[1], path, tmp_path / folder / path.stem, tile=96, overlap=32).run().files
        )
        return labels.read_bytes()

    expected = [infer(path, 'one') for path in paths]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda path: infer(path, 'eight'), paths)) == expected
