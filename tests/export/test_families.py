"""Whole models, exported with free sizes and verified by the command's own verification, in both runtimes."""

import pytest

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

from helpers.export.small_exports import save_checkpoint, small_config
from mmengine.registry import MODELS, DefaultScope
from test_boxes import WHOLE

from swin_backbone.export import export, formats
from swin_backbone.export.graph import ExportError

FAMILIES = {**WHOLE, 'Mask R-CNN with batch norm': 'demo/mask-rcnn_swin-nano_fpn_shapes.py'}


@pytest.mark.slow
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
        suppresses = {'RetinaNet', 'ATSS', 'GFL', 'FCOS', 'VFNet', 'TOOD', 'YOLOX', 'RTMDet', 'RTMDet-Ins'}
        two_stage = 'R-CNN' in family or family == 'HTC++'
        assert ('NonMaxSuppression' in kinds) == (family in suppresses or (two_stage and family != 'Sparse R-CNN'))
        assert ('RoiAlign' in kinds) == two_stage


@pytest.mark.parametrize(
    ('name', 'says'),
    [
        ('mmdet::paa/paa_r50_fpn_1x_coco.py', r'PAAHead\.predict_by_feat, which differs from that of BaseDenseHead,'),
        ('mmdet::solo/solo_r50_fpn_1x_coco.py', 'SOLO'),
        ('mmdet::dab_detr/dab-detr_r50_8xb2-50e_coco.py', r'DABDETR\.forward_transformer'),
        ('mmdet::queryinst/queryinst_r50_fpn_1x_coco.py', r'SparseRoIHead\.mask_head'),
        ('mmseg::ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512.py', 'CascadeEncoderDecoder with'),
    ],
)
def test_a_refusal_names_the_part_that_prevents_it(name, says):
    cfg = small_config(name)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    with pytest.raises(ExportError, match=says + r'.* cannot be exported whole.*: use --part neck or --part backbone'):
        export.graph_of(model, cfg, 'model', None)
