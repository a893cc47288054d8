_base_ = './swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
