"""Predictions in several threads equal predictions in a single thread."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip('onnx', reason='onnx is not installed')
pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')

from helpers.export.small_exports import require, small_swin
from helpers.export.tiny_export import export_to

from swin_backbone import SwinBackbone
from swin_backbone.workbench.export import export, graph, runtime
from swin_backbone.workbench.export.predictor import ExportedPredictor

THREADS = 8


def in_threads(predict, inputs):
    """Return the results of a function, computed in many threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(predict, inputs))


def pictures():
    """Return noise of several sizes. Every picture has a different result."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (60 + 10 * (index % 3), 80, 3), np.uint8) for index in range(160)]


@pytest.mark.parametrize('shape', ['free', 'one size'])
@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_pictures_in_threads(format, shape, tmp_path):
    """tools/infer.py predicts with `ExportedPredictor`."""
    options = {} if shape == 'free' else dict(shape=[1, 24, 40, 3], resize=dict(scale=[40, 24], keep_ratio=False))
    predictor = ExportedPredictor(str(export_to(tmp_path / 'out', format, **options)))

    def labels(picture):
        (sample,) = predictor.predict([dict(inputs=picture)])
        return sample.pred_sem_seg.data[0].numpy()

    expected = list(map(labels, pictures()))
    got = in_threads(labels, pictures())
    assert sum(not np.array_equal(*pair) for pair in zip(got, expected)) == 0


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
def test_maps_in_threads(format, tmp_path):
    require(format)
    one = graph.maps_graph(small_swin(SwinBackbone), 'backbone', (40, 52))
    export.write(one, tmp_path / 'out', format, 'fp32')
    run = runtime.RuntimeModel(tmp_path / 'out').run
    images = np.random.default_rng(0).standard_normal((40, 1, 3, 40, 52), np.float32)
    expected = [run([image])[0].copy() for image in images]
    got = in_threads(lambda image: run([image])[0], images)
    assert sum(not np.array_equal(*pair) for pair in zip(got, expected)) == 0
    images[0, 0, 0, 3, 4] = np.nan
    with pytest.raises(runtime.RuntimeProblem, match='image takes finite values, got nan'):
        run([images[0]])
    assert np.array_equal(run([images[1]])[0], expected[1])
