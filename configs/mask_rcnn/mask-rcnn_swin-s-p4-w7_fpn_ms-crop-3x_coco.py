_base_ = './mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py'
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
