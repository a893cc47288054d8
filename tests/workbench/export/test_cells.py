"""Write, run and verify all cells of the table in docs/guides/deploy.md, and whole models in half precision."""

import numpy as np
import pytest
from helpers.export.small_exports import require, save_checkpoint, small_config

from swin_backbone.workbench.export import export, formats, verify

pytestmark = pytest.mark.slow
CELLS = [(format, precision) for format, precisions in formats.PRECISIONS.items() for precision in precisions]
MORE = {cell: ['nncf'] * (cell == ('openvino', 'int8')) for cell in CELLS}  # packages
WHOLE_CELLS = [(format, precision) for format, precision in CELLS if format in ('onnx', 'openvino')]
ROUNDED = 0.3  # share of matched objects: a random head magnifies rounding. Wrong coordinates match no object.


def allow_matched(monkeypatch, precision, share):
    monkeypatch.setitem(verify.TOLERANCES, precision, verify.TOLERANCES[precision]._replace(objects=share))


@pytest.mark.parametrize(('format', 'precision'), WHOLE_CELLS)
def test_a_whole_segmentor(format, precision, tmp_path):
    require(format, 'mmseg', *MORE[(format, precision)])
    cfg = small_config('mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py')
    checkpoint = save_checkpoint(cfg, tmp_path / 'x.pth')
    pictures = list(np.random.default_rng(0).integers(0, 256, (2, 60, 90, 3), np.uint8))
    one = export.export_model(cfg, str(checkpoint), tmp_path / 'out', format, precision=precision, pictures=pictures)
    assert (one['format'], one['precision']) == (format, precision)


@pytest.mark.parametrize('family', ['UPerNet', 'RetinaNet', 'ATSS', 'Mask R-CNN', 'Mask2Former, instances'])
def test_a_whole_model_in_fp16(family, tmp_path, monkeypatch):
    """Coordinates are in float32. Differences come only from rounded maps."""
    from test_families import FAMILIES

    require('onnx')
    if 'R-CNN' in family:
        allow_matched(monkeypatch, 'fp16', ROUNDED)
    cfg = small_config(FAMILIES[family].config)
    checkpoint = save_checkpoint(cfg, tmp_path / 'x.pth')
    assert export.export_model(cfg, str(checkpoint), tmp_path / 'out', 'onnx', precision='fp16')['precision'] == 'fp16'
    import onnx

    model = onnx.load(str(tmp_path / 'out' / 'model.onnx'))
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))
    halves = {one.name for one in model.graph.initializer if one.data_type == 10}  # TensorProto.FLOAT16
    half = {node.op_type for node in model.graph.node if halves & set(node.input)}
    assert {'Conv', 'MatMul', 'LayerNormalization'} <= half
    assert not half & {'NonMaxSuppression', 'RoiAlign'}


def test_a_detector_in_openvinos_int8_opens(tmp_path, monkeypatch):
    """OpenVINO's transformations of eight bits lose the shape of boxes, and its NMS takes no unknown one."""
    from test_families import FAMILIES

    require('openvino', 'mmdet', 'nncf')
    allow_matched(monkeypatch, 'fp32', ROUNDED)
    allow_matched(monkeypatch, 'int8', 0.0)
    cfg = small_config(FAMILIES['Mask R-CNN'].config)
    checkpoint = save_checkpoint(cfg, tmp_path / 'x.pth')
    pictures = list(np.random.default_rng(0).integers(0, 256, (2, 60, 90, 3), np.uint8))
    one = export.export_model(cfg, str(checkpoint), tmp_path / 'out', 'openvino', precision='int8', pictures=pictures)
    assert one['precision'] == 'int8'
