"""Predictions in several threads equal predictions in a single thread."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip('onnx', reason='onnx is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

from helpers.export.tiny_export import export_to

from swin_backbone.workbench.export.predictor import ExportedPredictor


@pytest.mark.parametrize('shape', ['free', 'one size'])
@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_pictures_in_threads(format, shape, tmp_path):
    """tools/infer.py predicts with `ExportedPredictor`."""
    options = {} if shape == 'free' else dict(shape=[1, 24, 40, 3], resize=dict(scale=[40, 24], keep_ratio=False))
    predictor = ExportedPredictor(str(export_to(tmp_path / 'out', format, **options)))

    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (60 + 10 * (index % 3), 80, 3), np.uint8) for index in range(160)]

    def labels(picture):
        (sample,) = predictor.predict([dict(inputs=picture)])
        return sample.pred_sem_seg.data[0].numpy()

    expected = list(map(labels, pictures))
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(labels, pictures))
    assert sum(not np.array_equal(*pair) for pair in zip(got, expected)) == 0
