_base_ = [
    '../_base_/models/sparse-rcnn_swin_fpn.py',
    '../_base_/datasets/coco_detection_ms-crop.py', '../_base_/schedules/swin_3x.py',
    '../_base_/default_runtime_det.py'
]
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
optim_wrapper = dict(clip_grad=dict(max_norm=1, norm_type=2))
