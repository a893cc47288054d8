"""Whole models, exported with free sizes and verified by the command's own verification, in both runtimes."""

import pytest

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

from helpers.export.small_exports import save_checkpoint, small_config
from test_boxes import WHOLE

from swin_backbone.export import export, formats
from swin_backbone.export.graph import ExportError

pytestmark = pytest.mark.slow
FAMILIES = {**WHOLE, 'Mask R-CNN with batch norm': 'demo/mask-rcnn_swin-nano_fpn_shapes.py'}


@pytest.mark.parametrize('format', ['onnx', 'openvino'])
@pytest.mark.parametrize('family', FAMILIES)
def test_a_whole_model(family, format, tmp_path):
    for name in formats.NEEDED[format]:
        pytest.importorskip(name, reason=f'{name} is not installed')
    cfg = small_config(FAMILIES[family])
    checkpoint = save_checkpoint(cfg, tmp_path / 'x.pth')
    manifest = export.export(cfg, str(checkpoint), tmp_path / 'out', format, precision='fp32')
    assert len(manifest['verification']) == 9
    for figures in manifest['verification']:
        assert figures.get('equal_labels', 1) > 0.999
        assert figures.get('matched', 1) == 1
    if format == 'onnx':
        import onnx

        model = onnx.load(str(tmp_path / 'out' / 'model.onnx'))
        assert {node.domain for node in model.graph.node} == {''}
        kinds = {node.op_type for node in model.graph.node}
        assert ('NonMaxSuppression' in kinds) == (family in ('RetinaNet', 'ATSS') or 'R-CNN' in family)
        assert ('RoiAlign' in kinds) == ('R-CNN' in family)


@pytest.mark.parametrize('part', ['neck', 'backbone'])
def test_a_head_that_is_not_known_is_refused_by_name_and_its_parts_go(part, tmp_path):
    pytest.importorskip('onnxscript', reason='onnxscript is not installed')
    cfg = small_config('sparse_rcnn/sparse-rcnn_swin-t-p4-w7_fpn_300-proposals_ms-crop-3x_coco.py')
    checkpoint = save_checkpoint(cfg, tmp_path / 'x.pth')
    with pytest.raises(ExportError, match=r'SparseRCNN cannot be exported whole, only RetinaNet, .*: use --part neck'):
        export.export(cfg, str(checkpoint), tmp_path / 'out')
    manifest = export.export(cfg, str(checkpoint), tmp_path / 'out', part=part)
    assert len(manifest['outputs']) == len(manifest['inputs']) + 3
