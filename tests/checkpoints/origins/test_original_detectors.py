"""Compare whole models with the original repositories: OpenMMLab 1, Co-DETR and MaskDINO.

The repositories are no packages. `ORIGINALS` names a folder of clones, see CONTRIBUTING.md. Without clones the tests
skip.
"""

import subprocess
import sys
from pathlib import Path

import cv2
import pytest
import torch
from helpers.adapters.frameworks import original
from helpers.checkpoints.run_original import outputs_of_htc

from swin_backbone import SwinBackbone, convert_checkpoint
from swin_backbone.checkpoints import read_checkpoint
from swin_backbone.openmmlab.config.files import read_config

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')
pytestmark = pytest.mark.peer
RUN = Path(__file__).parents[2] / 'helpers' / 'checkpoints' / 'run_original.py'
WIDTHS = [32, 64, 128, 256]
DETECTION, SEGMENTATION = 'Swin-Transformer-Object-Detection', 'Swin-Transformer-Semantic-Segmentation'
MMCV = {DETECTION: '1.4.0', SEGMENTATION: '1.3.0', 'Co-DETR': '1.7.0'}  # the release each repository accepts
THEIR_SWIN = dict(
    _delete_=True, type='SwinTransformer', embed_dim=32, depths=[2] * 4, num_heads=[2, 4, 8, 16], drop_path_rate=0.0,
    window_size=7, ape=False, patch_norm=True,
)  # fmt: skip
SWIN = dict(_delete_=True, type='SwinBackbone', arch='nano', drop_path_rate=0.0)
DETECTORS = {
    'Mask R-CNN': (
        'configs/swin/mask_rcnn_swin_tiny_patch4_window7_mstrain_480-800_adamw_1x_coco.py',
        'configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    ),
    'Cascade Mask R-CNN': (
        'configs/swin/cascade_mask_rcnn_swin_tiny_patch4_window7_mstrain_480-800_giou_4conv1f_adamw_1x_coco.py',
        'configs/cascade_rcnn/cascade-mask-rcnn_swin-t-p4-w7_fpn_4conv1fc-giou_ms-crop-3x_coco.py',
    ),
    'HTC': ('configs/htc/htc_r50_fpn_1x_coco.py', 'mmdet::htc/htc_r50_fpn_1x_coco.py'),
    'ATSS': ('configs/atss/atss_r50_fpn_1x_coco.py', 'mmdet::atss/atss_r50_fpn_1x_coco.py'),
    'Sparse R-CNN': (
        'configs/sparse_rcnn/sparse_rcnn_r50_fpn_1x_coco.py',
        'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py',
    ),
    'RepPoints': (
        'configs/reppoints/reppoints_moment_r50_fpn_1x_coco.py',
        'mmdet::reppoints/reppoints-moment_r50_fpn_1x_coco.py',
    ),
}


@pytest.fixture(scope='module')
def x_BCHW():
    """Return a small photograph."""
    picture = cv2.imread(str(original(DETECTION) / 'demo' / 'demo.jpg'))
    x_HWC = torch.from_numpy(cv2.resize(picture, (162, 130))).float()
    return ((x_HWC - 116) / 58).permute(2, 0, 1)[None].contiguous()


def theirs(tmp_path, x_BCHW, repository, config, options=None, toolbox='mmdet'):
    """Run an original model. Return (converted state_dict, maps, result)."""
    options = {'model.backbone': THEIR_SWIN, 'model.pretrained': None, **(options or {})}
    torch.save(
        dict(config=config, options=options, toolbox=toolbox, mmcv=MMCV[repository], x=x_BCHW), tmp_path / 'job.pth'
    )
    folders = [str(original(name)) for name in (repository, 'mmcv-1.7.2')]
    subprocess.run([sys.executable, RUN, *folders, tmp_path], check=True, timeout=240, cwd=tmp_path)
    convert_checkpoint(tmp_path / 'model.pth', tmp_path / 'ours.pth', 'mmdet')
    computed = torch.load(tmp_path / 'computed.pth')
    return read_checkpoint(tmp_path / 'ours.pth')['state_dict'], computed['maps'], computed['result']


def ours(state, toolbox, config, options):
    """Build the model of a config of this package or mmdet. Load `state` strictly."""
    from mmengine.registry import MODELS, init_default_scope

    cfg = read_config(config)
    cfg.merge_from_dict({'model.backbone': SWIN, **options})
    init_default_scope(toolbox)
    model = MODELS.build(cfg.model).eval()
    model.load_state_dict(state, strict=True)
    return model


def predicted(model, x_BCHW):
    from mmdet.structures import DetDataSample

    shape = tuple(x_BCHW.shape[2:])
    sample = DetDataSample(
        metainfo=dict(img_shape=shape, ori_shape=shape, batch_input_shape=shape, scale_factor=(1.0, 1.0))
    )
    with torch.no_grad():
        return model.predict(x_BCHW, [sample], rescale=True)[0].pred_instances


def assert_same_detections(found, expected, least=20):
    """Compare classes, scores and masks of 95 % of the boxes. NMS may keep either of two similar boxes."""
    total = sum(len(boxes) for boxes in expected['boxes'])
    assert abs(len(found) - total) <= 0.05 * total
    assert total >= least
    same = 0
    for label, boxes in enumerate(expected['boxes']):
        own = found[found.labels == label]
        rows = torch.cat([own.bboxes, 100 * own.scores[:, None]], 1)
        for index, box in enumerate(boxes):
            distance = (rows - box * box.new_tensor([1, 1, 1, 1, 100])).abs().amax(1)
            if not len(rows) or distance.min() > 0.02:
                continue
            mask = own.masks[distance.argmin()] if 'masks' in expected else None
            same += mask is None or bool((mask != expected['masks'][label][index]).float().mean() < 1e-3)
    assert same >= 0.95 * total


@pytest.mark.parametrize('name', DETECTORS)
def test_detectors_of_mmdet_2(tmp_path, x_BCHW, name):
    """mmdet 2.11 in Swin-Transformer-Object-Detection at c7b2011: equal boxes, scores, classes and masks."""
    config, here = DETECTORS[name]
    neck = {'model.neck.in_channels': WIDTHS}
    state, maps, result = theirs(tmp_path, x_BCHW, DETECTION, config, neck)
    model = ours(state, 'mmdet', here, neck)
    with torch.no_grad():
        torch.testing.assert_close(list(model.backbone(x_BCHW)), maps, rtol=1e-3, atol=1e-4)
        if name == 'HTC':
            torch.testing.assert_close(outputs_of_htc(model, x_BCHW), result, rtol=1e-3, atol=1e-3)
            return
        if hasattr(model, 'bbox_head'):
            model.bbox_head.train()  # in training mode RepPoints returns points, not boxes
            outputs = model.bbox_head(model.extract_feat(x_BCHW))
            torch.testing.assert_close(tuple(outputs), tuple(result), rtol=1e-3, atol=1e-3)
            return
    assert_same_detections(predicted(model, x_BCHW), result)


@torch.no_grad()
def test_upernet_of_mmseg_0(tmp_path, x_BCHW):
    """mmseg 0.11 in Swin-Transformer-Semantic-Segmentation at 87e6f90: equal logits."""
    heads = {
        'model.decode_head.in_channels': WIDTHS, 'model.auxiliary_head.in_channels': 128,
        'model.decode_head.norm_cfg.type': 'BN', 'model.auxiliary_head.norm_cfg.type': 'BN',
    }  # fmt: skip
    config = 'configs/swin/upernet_swin_tiny_patch4_window7_512x512_160k_ade20k.py'
    state, _, logits = theirs(tmp_path, x_BCHW, SEGMENTATION, config, heads, 'mmseg')
    here = 'configs/upernet/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'
    model = ours(state, 'mmseg', here, heads)
    assert logits.std() > 1e-2
    torch.testing.assert_close(model.decode_head(model.extract_feat(x_BCHW)), logits, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_reppoints_v2(tmp_path, x_BCHW):
    """mmdet 3 lacks the head and the BiFPN of RepPoints V2. Names and weights of head and BiFPN stay."""
    config = 'configs/swin/reppoitsv2_swin_tiny_patch4_window7_mstrain_480_960_giou_gfocal_bifpn_adamw_3x_coco.py'
    swin = {**THEIR_SWIN, 'out_indices': [1, 2, 3]}
    options = {'model.neck.in_channels': WIDTHS[1:], 'model.backbone': swin}
    state, maps, _ = theirs(tmp_path, x_BCHW, DETECTION, config, options)
    source = torch.load(tmp_path / 'model.pth')['state_dict']
    around = {key for key in source if not key.startswith('backbone.')}
    assert around == {key for key in state if not key.startswith('backbone.')}
    assert {key.split('.')[0] for key in around} == {'neck', 'bbox_head'}
    assert all(torch.equal(state[key], source[key]) for key in around)
    backbone = SwinBackbone(arch='nano', out_indices=(1, 2, 3)).eval()
    weights = {key.removeprefix('backbone.'): v for key, v in state.items() if key.startswith('backbone.')}
    backbone.load_state_dict(weights, strict=True)
    torch.testing.assert_close(list(backbone(x_BCHW)), maps, rtol=1e-3, atol=1e-4)


def test_co_detr(tmp_path, x_BCHW, monkeypatch):
    """Sense-X/Co-DETR at 2665352, with SwinTransformerV1, in projects/CO-DETR of mmdetection at aeb4647."""
    folder = original('mmdetection')
    monkeypatch.setattr(sys, 'path', [*sys.path, str(folder)])
    heads = {
        'model.neck.in_channels': WIDTHS, 'model.query_head.num_query': 30, 'model.query_head.num_classes': 5,
        'model.query_head.transformer.encoder.num_layers': 1, 'model.query_head.transformer.encoder.with_cp': 0,
        'model.query_head.transformer.decoder.num_layers': 2, 'model.roi_head.0.bbox_head.num_classes': 5,
        'model.bbox_head.0.num_classes': 5, 'model.test_cfg.0.max_per_img': 30,
    }  # fmt: skip
    swin = {'model.backbone': {**THEIR_SWIN, 'type': 'SwinTransformerV1'}}
    config = 'projects/configs/co_dino/co_dino_5scale_swin_large_1x_coco.py'
    state, maps, result = theirs(tmp_path, x_BCHW, 'Co-DETR', config, {**heads, **swin})
    configs = folder / 'projects' / 'CO-DETR' / 'configs' / 'codino'
    model = ours(state, 'mmdet', configs / 'co_dino_5scale_swin_l_16xb1_1x_coco.py', heads)
    with torch.no_grad():
        torch.testing.assert_close(list(model.backbone(x_BCHW)), maps, rtol=1e-3, atol=1e-4)
    assert_same_detections(predicted(model, x_BCHW), result)
