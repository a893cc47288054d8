"""Configs with a swapped Swin: build the model, train one step, predict."""

import copy
from types import SimpleNamespace

import numpy as np
import torch
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData

from swin_backbone import swap_backbone
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.config_parts import walk

# Family: config. test_swap_every_config.py trains all families.
PLACED = {
    'Faster R-CNN': 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'Mask R-CNN': 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'Cascade Mask R-CNN': 'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
    'Panoptic FPN': 'mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
    'RetinaNet': 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
    'FCOS': 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
    'ATSS': 'mmdet::atss/atss_r50_fpn_1x_coco.py',
    'ATSS, DyHead': 'mmdet::dyhead/atss_r50_fpn_dyhead_1x_coco.py',
    'TOOD': 'mmdet::tood/tood_r50_fpn_1x_coco.py',
    'YOLOX': 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py',
    'RTMDet': 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'CenterNet': 'mmdet::centernet/centernet_r18_8xb16-crop512-140e_coco.py',
    'CondInst': 'mmdet::condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py',
    'DETR': 'mmdet::detr/detr_r50_8xb2-150e_coco.py',
    'Deformable DETR': 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py',
    'DINO': 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py',
    'MaskFormer': 'mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py',
    'Mask2Former, instances': 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py',
    'Mask2Former, panoptic': 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py',
    'FCN': 'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py',
    'PSPNet': 'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'DeepLabV3+': 'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py',
    'UPerNet': 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
    'SegFormer': 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
    'Semantic FPN': 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
    'K-Net': 'mmseg::knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py',
    'PointRend, semantic': 'mmseg::point_rend/pointrend_r50_4xb4-160k_ade20k-512x512.py',
}

# Families of test_swap_breadth.py. tests/workbench/runner trains RetinaNet, PSPNet and SegFormer.
QUICK = (
    'Mask R-CNN', 'FCOS', 'RTMDet', 'DETR', 'Deformable DETR', 'MaskFormer', 'FCN', 'DeepLabV3+', 'Semantic FPN',
)  # fmt: skip

# Family: config, and the key in the error.
REFUSED = {
    'SSD': ('mmdet::ssd/ssd300_coco.py', 'model.neck.out_channels'),
    'CornerNet': ('mmdet::cornernet/cornernet_hourglass104_32xb3-210e-mstest_coco.py', 'model.backbone'),
    'Faster R-CNN on C4': ('mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py', 'model.roi_head.shared_head'),
    'DetectoRS': ('mmdet::detectors/cascade-rcnn_r50-rfp_1x_coco.py', 'model.backbone'),
    'DeepSORT': ('mmdet::deepsort/deepsort_faster-rcnn_r50_fpn_8xb2-4e_mot17train_test-mot17test.py', 'model'),
    'U-Net': ('mmseg::unet/unet-s5-d16_fcn_4xb4-40k_chase-db1-128x128.py', 'model.backbone'),
    'DPT': ('mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py', 'model.backbone'),
    'SAN': ('mmseg::san/san-vit-b16_coco-stuff164k-640x640.py', 'model'),
}


def swapped(path, **backbone):
    """Return a config with swin-nano as backbone, without downloads."""
    return swap_backbone(read_config(path), 'swin-nano', verbose=False, init_cfg=None, **backbone)


SIDE = 64  # pixels
SMALL = dict(num=16, nms_pre=100, max_per_img=20, max_num=20, num_points=64)


def shrink(node):
    """Lower the numbers of proposals, samples and queries in place, to save time."""
    for _, part in walk(node):
        if isinstance(part, dict):
            part.update({key: min(part[key], most) for key, most in SMALL.items() if isinstance(part.get(key), int)})


def alone(node):
    """Remove settings that need several processes, the network or fairscale, in place."""
    for _, part in walk(node):
        if isinstance(part, dict):
            if part.get('type') == 'MMSyncBN':
                part['type'] = 'BN'
            if 'num_cp' in part:
                part['num_cp'] = 0
            part.pop('teacher_ckpt', None)


def build(cfg, initialise=True, side=SIDE):
    """Return the model of a config, for small pictures."""
    for part in ('train_cfg', 'test_cfg'):
        shrink(cfg.model.get(part))
    if 'data_preprocessor' not in cfg.model:  # like mmpretrain's runner
        cfg.model.data_preprocessor = cfg.data_preprocessor
    preprocessor = cfg.model.data_preprocessor
    if 'size' in preprocessor:
        preprocessor.size = (side, side)  # a segmentor pads training pictures to this size
    preprocessor.pop('batch_augments', None)  # pads to the size of a crop
    alone(cfg.model)
    if cfg.model.type == 'DINO':
        cfg.model.num_queries = 30  # a small picture has few tokens
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = revert_sync_batchnorm(MODELS.build(copy.deepcopy(cfg.model)))  # some models write into their config
        if initialise:
            model.init_weights()
    return model


def pictures_and_truth(cfg, batch=2, side=SIDE):
    """Return random pictures with labels, in the form of the toolbox's data loader."""
    if cfg.default_scope == 'mmseg':
        from mmseg.structures import SegDataSample

        samples = []
        for _ in range(batch):
            sample = SegDataSample(
                metainfo=dict(img_shape=(side, side), ori_shape=(side, side), pad_shape=(side, side))
            )
            sample.gt_sem_seg = PixelData(data=torch.randint(0, 8, (1, side, side)))
            samples.append(sample)
        pictures = [torch.randint(0, 256, (3, side, side), dtype=torch.uint8) for _ in range(batch)]
        return dict(inputs=pictures, data_samples=samples)
    if cfg.default_scope == 'mmpretrain':
        return pictures_and_classes(cfg, (side, side))
    if cfg.model.type == 'BaseReID':
        return pictures_and_classes(cfg, (256, 128))  # the input size of its pooling layer
    return _of_detection(cfg, batch, side)


def pictures_and_classes(cfg, size, batch=4):
    """Return random pictures of a size (height, width) with classes."""
    from mmdet.structures import ReIDDataSample
    from mmpretrain.structures import DataSample

    kind = DataSample if cfg.default_scope == 'mmpretrain' else ReIDDataSample
    pictures = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for _ in range(batch)]
    samples = [kind().set_gt_label(i % 2) for i in range(batch)]  # two pictures of a class, for a triplet loss
    return dict(inputs=pictures, data_samples=samples)


def _of_detection(cfg, batch, side):
    from mmdet.testing import demo_mm_inputs, demo_track_inputs

    np.random.seed(0)
    loaders = str(cfg.get('train_dataloader'))
    with_mask = "'with_mask': True" in loaders or 'Panoptic' in loaders
    with_semantic = "'with_seg': True" in loaders or 'Panoptic' in loaders
    shapes, items, classes = [[3, side, side]] * batch, [3] * batch, min(8, *_values(cfg.model, 'num_classes'))
    kind = cfg.model.data_preprocessor.type.rpartition('.')[2]
    # A tracker trains on clips; its detector trains on pictures.
    if kind == 'TrackDataPreprocessor' and not cfg.model.data_preprocessor.get('use_det_processor'):
        return demo_track_inputs(batch, 2, [0], shapes, items, classes, with_mask=with_mask)

    def inputs():
        # Labels of `demo_mm_inputs` begin with 1, so one class has no label.
        data = demo_mm_inputs(
            batch, shapes, items, num_classes=max(classes, 2), with_mask=with_mask, with_semantic=with_semantic
        )
        for sample in data['data_samples']:
            sample.gt_instances.labels.clamp_(max=classes - 1)
        return data

    if kind == 'MultiBranchDataPreprocessor':
        branches = {name: inputs() for name in ('sup', 'unsup_teacher', 'unsup_student')}
        for branch in branches.values():
            for sample in branch['data_samples']:
                sample.set_metainfo(dict(homography_matrix=np.eye(3, dtype=np.float32)))
        return {part: {name: branch[part] for name, branch in branches.items()} for part in ('inputs', 'data_samples')}
    data = inputs()
    if cfg.model.type == 'FastRCNN':  # reads proposals from the samples
        for sample in data['data_samples']:
            boxes = sample.gt_instances.bboxes
            sample.proposals = InstanceData(bboxes=boxes.clone(), scores=torch.ones(len(boxes)))
    return data


def _values(node, key):
    """Yield 2 ** 30, then the ints at all keys `key` of a config."""
    yield 1 << 30
    yield from (value for path, value in walk(node) if path.rpartition('.')[2] == key and isinstance(value, int))


def train_one_step(cfg, model, data):
    """Train for one step. Return the losses, and the names of backbone parameters without a gradient."""
    reached = set()
    backbone = backbone_of(model)
    trained = [(name, parameter) for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    for name, parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))
    for counter in ('iter', 'epoch'):  # some heads and assigners read the counters
        MessageHub.get_current_instance().update_info(counter, 0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        wrapper = Runner.build_optim_wrapper(SimpleNamespace(model=model), cfg.optim_wrapper)
        model.train()
        losses = model.train_step(data, wrapper)
    return losses, [name for name, _ in trained if name not in reached]


def backbone_of(model):
    """Return the trained backbone of a detector, or of the detector in a wrapper or tracker."""
    backbones = [module for name, module in model.named_modules() if name.endswith('backbone')]
    return next(module for module in backbones if any(parameter.requires_grad for parameter in module.parameters()))


def predict(cfg, model, data):
    model.eval()
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.no_grad():
        return model.test_step(data)
