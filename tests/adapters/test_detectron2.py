"""The backbone in detectron2: a recorded interface, and detectron2's source if ORIGINALS has a clone."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from helpers.adapters.detectron2_interface import recorded
from helpers.adapters.detectron2_models import SWIN, detectron2_source, mask2former_cfg, maskdino_cfg, their_swin
from helpers.adapters.frameworks import (
    assert_compiled,
    assert_equal_maps,
    give_torchvision_operators,
    original,
    train_a_step,
)
from helpers.checkpoints.origins import official_backbone
from helpers.models.small_models import randomised

pytestmark = pytest.mark.peer
X = torch.linspace(-1, 1, 2 * 3 * 45 * 70).view(2, 3, 45, 70).sin()
MASK_RCNN = [
    *('MODEL.DEVICE', 'cpu', 'MODEL.META_ARCHITECTURE', 'GeneralizedRCNN', 'MODEL.MASK_ON', True),
    *('MODEL.BACKBONE.NAME', 'build_swin_fpn_backbone', 'MODEL.FPN.OUT_CHANNELS', 16),
    *('MODEL.FPN.IN_FEATURES', ['res2', 'res3', 'res4', 'res5']),
    *('MODEL.RPN.IN_FEATURES', ['p2', 'p3', 'p4', 'p5', 'p6']),
    *('MODEL.ANCHOR_GENERATOR.SIZES', [[32], [64], [128], [256], [512]], 'MODEL.ROI_HEADS.NAME', 'StandardROIHeads'),
    *('MODEL.ROI_HEADS.IN_FEATURES', ['p2', 'p3', 'p4', 'p5'], 'MODEL.ROI_HEADS.NUM_CLASSES', 3),
    *('MODEL.ROI_BOX_HEAD.NAME', 'FastRCNNConvFCHead', 'MODEL.ROI_BOX_HEAD.NUM_FC', 1, 'MODEL.ROI_BOX_HEAD.FC_DIM', 16),
    *('MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION', 7, 'MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION', 14),
    *('MODEL.ROI_MASK_HEAD.NAME', 'MaskRCNNConvUpsampleHead', 'MODEL.ROI_MASK_HEAD.NUM_CONV', 1),
    *('MODEL.ROI_MASK_HEAD.CONV_DIM', 16),
]


def small(cfg):
    for key, value in SWIN.items():
        setattr(cfg.MODEL.SWIN, key, value)
    return cfg


@pytest.fixture
def adapter():
    with recorded() as adapter:
        yield adapter


@torch.no_grad()
def test_outputs_have_their_names_and_shapes(adapter):
    model = adapter.D2SwinBackbone(out_features=['res5', 'res3'], arch='nano').eval()
    assert isinstance(model, adapter.Backbone)
    maps, specs = model(X), model.output_shape()
    assert list(maps) == list(specs) == ['res3', 'res5']
    assert [(spec.channels, spec.stride) for spec in specs.values()] == [(64, 8), (256, 32)]
    assert [x.shape[1] for x in maps.values()] == [64, 256]
    assert model.size_divisibility == 32


def test_every_key_of_their_config_is_read(adapter):
    cfg = adapter.CfgNode(MODEL=adapter.CfgNode())
    adapter.add_swin_config(cfg)
    small(cfg)
    given = dict(
        PATCH_SIZE=4, WINDOW_SIZE=5, MLP_RATIO=2.0, QKV_BIAS=False, QK_SCALE=0.3, DROP_RATE=0.1, ATTN_DROP_RATE=0.2,
        DROP_PATH_RATE=0.3, APE=True, PRETRAIN_IMG_SIZE=64, PATCH_NORM=False, USE_CHECKPOINT=True,
        OUT_FEATURES=['res4'],
    )  # fmt: skip
    assert set(cfg.MODEL.SWIN) == {*given, 'EMBED_DIM', 'DEPTHS', 'NUM_HEADS'}
    for key, value in given.items():
        setattr(cfg.MODEL.SWIN, key, value)
    model = adapter.build_swin_backbone(cfg, None)
    block = model.stages[3].blocks[1]
    attention = block.attn.w_msa
    assert model.window_size[0] == (5, 5)
    assert (attention.scale, attention.qkv.bias, attention.attn_drop_rate) == (0.3, None, 0.2)
    assert (model.with_cp, model.drop_after_pos.p, model.out_indices) == (True, 0.1, (2,))
    assert block.ffn.layers[0][0].out_features == 2 * 256
    assert model.absolute_pos_embed.shape == (1, 16 * 16, 32)
    assert not list(model.patch_embed.norm.parameters())
    assert block.drop_path.drop_prob == pytest.approx(0.3)
    kept = cfg.MODEL.SWIN
    adapter.add_swin_config(cfg)  # on a config that already has SWIN, like Mask2Former's
    assert cfg.MODEL.SWIN is kept


@pytest.fixture
def source():
    """Import the source of detectron2 and register the adapter."""
    with detectron2_source() as detectron2:
        import swin_backbone.adapters.detectron2  # noqa: F401

        yield detectron2


def test_mask_rcnn_trains_and_its_checkpointer_loads(source, tmp_path, monkeypatch):
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model
    from detectron2.structures import Boxes, Instances, PolygonMasks
    from detectron2.utils.events import EventStorage

    import swin_backbone.adapters.detectron2 as adapter

    cfg = get_cfg()
    adapter.add_swin_config(cfg)
    small(cfg)
    cfg.merge_from_list(MASK_RCNN)
    give_torchvision_operators(monkeypatch)
    from torchvision.ops import poolers

    monkeypatch.setattr(sys.modules['detectron2.layers.roi_align'], 'roi_align', poolers.roi_align)
    model = build_model(cfg)
    target = Instances((60, 90))
    target.gt_boxes, target.gt_classes = Boxes(torch.tensor([[4.0, 4, 50, 40]])), torch.tensor([1])
    target.gt_masks = PolygonMasks([[[4.0, 4, 50, 4, 50, 40]]])
    batch = [dict(image=torch.rand(3, 60, 90) * 255, instances=target, height=60, width=90)]
    with EventStorage():
        assert train_a_step(model, lambda model: sum(model(batch).values())) > 0
    assert_compiled(lambda: model.eval()(batch), blocks=8)

    swin = randomised()
    whole = model.state_dict()
    state = {k: v for k, v in whole.items() if not k.startswith('backbone.bottom_up.')}
    state |= {f'backbone.bottom_up.{key}': value for key, value in official_backbone(swin.state_dict()).items()}
    for extra in ({}, dict(matching_heuristics=True, __author__='MaskFormer')):
        torch.save({'model': state, **extra}, tmp_path / 'theirs.pth')
        model.load_state_dict(whole)
        DetectionCheckpointer(model).load(str(tmp_path / 'theirs.pth'))
        with torch.no_grad():
            assert_equal_maps(list(model.backbone.bottom_up(X).values()), swin(X))


@pytest.mark.parametrize('repository', ['Mask2Former', 'MaskDINO', 'OneFormer'])
@torch.no_grad()
def test_their_backbone_by_changing_a_name(source, repository):
    """`D2SwinTransformer` of Mask2Former at 9b0651c, MaskDINO at 3831d85 and OneFormer at 4962ef6, with weights."""
    from detectron2.config import get_cfg
    from detectron2.modeling import build_backbone

    import swin_backbone.adapters.detectron2 as adapter

    (path,) = original(repository).glob('*/modeling/backbone/swin.py')
    spec = spec_from_file_location('their_swin', path)
    their_swin(lambda: spec.loader.exec_module(module_from_spec(spec)))
    cfg = get_cfg()
    cfg.MODEL.DEVICE = 'cpu'
    adapter.add_swin_config(cfg)
    small(cfg)
    models = []
    for cfg.MODEL.BACKBONE.NAME in ('D2SwinTransformer', 'build_swin_backbone'):
        models.append(build_backbone(cfg))
        models[-1].eval()  # no chained call: `eval` of the originals returns None
    theirs, ours = models
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-3, atol=1e-4)
    assert ours.output_shape() == theirs.output_shape()
    assert ours.size_divisibility == theirs.size_divisibility


@pytest.mark.parametrize('repository', ['Mask2Former', 'MaskDINO'])
def test_whole_models_by_changing_a_name(repository, tmp_path):
    """Load a whole checkpoint with detectron2's checkpointer, compare the outputs, and train."""
    with detectron2_source(repository):
        from detectron2.checkpoint import DetectionCheckpointer
        from detectron2.modeling import build_model
        from detectron2.structures import BitMasks, Boxes, Instances

        import swin_backbone.adapters.detectron2  # noqa: F401

        cfg = mask2former_cfg() if repository == 'Mask2Former' else maskdino_cfg()
        models = []
        for cfg.MODEL.BACKBONE.NAME in ('D2SwinTransformer', 'build_swin_backbone'):
            models.append(build_model(cfg).eval())
        theirs, ours = models
        for name, parameter in theirs.named_parameters():
            torch.nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=0.05)
        torch.save(dict(model=theirs.state_dict()), tmp_path / 'model_final.pth')
        DetectionCheckpointer(ours).load(str(tmp_path / 'model_final.pth'))
        heads = {key: value for key, value in theirs.state_dict().items() if not key.startswith('backbone.')}
        assert all(torch.equal(ours.state_dict()[key], value) for key, value in heads.items())
        x = torch.linspace(-1, 1, 3 * 96 * 160).view(1, 3, 96, 160).mul(97).sin()
        with torch.no_grad():
            outputs = [model.sem_seg_head(model.backbone(x)) for model in (ours, theirs)]
        outputs = [o[0] if isinstance(o, tuple) else o for o in outputs]
        assert outputs[1]['pred_masks'].std() > 1e-2
        for key in ('pred_logits', 'pred_masks', 'pred_boxes'):
            if key in outputs[1]:
                torch.testing.assert_close(outputs[0][key], outputs[1][key], rtol=1e-3, atol=1e-3)
        assert_compiled(lambda: ours.backbone(x), blocks=8)

        target = Instances((96, 160))
        masks = torch.zeros(2, 96, 160, dtype=torch.bool)
        masks[0, 10:60, 20:80], masks[1, 50:90, 90:150] = True, True
        target.gt_masks, target.gt_classes = masks, torch.tensor([1, 3])
        target.gt_boxes = BitMasks(masks).get_bounding_boxes()
        assert isinstance(target.gt_boxes, Boxes)
        batch = [dict(image=torch.rand(3, 96, 160) * 255, instances=target, height=96, width=160)]
        assert train_a_step(ours, lambda model: sum(model(batch).values())) > 0
