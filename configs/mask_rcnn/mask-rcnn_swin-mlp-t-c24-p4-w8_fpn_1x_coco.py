_base_ = './mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.5/swin_mlp_tiny_c24_patch4_window8_256.pth'  # noqa: E501
model = dict(
    backbone=dict(
        type='SwinMLPBackbone',
        window_size=8,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
