_base_ = './cascade-mask-rcnn_swinv2-t-p4-w8_fpn_4conv1fc-giou_1x_coco.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_small_patch4_window8_256.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
