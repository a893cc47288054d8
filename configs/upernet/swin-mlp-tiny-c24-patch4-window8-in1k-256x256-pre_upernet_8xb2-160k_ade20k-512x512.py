_base_ = './swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.5/swin_mlp_tiny_c24_patch4_window8_256.pth'  # noqa: E501
model = dict(
    backbone=dict(
        type='SwinMLPBackbone',
        window_size=8,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
