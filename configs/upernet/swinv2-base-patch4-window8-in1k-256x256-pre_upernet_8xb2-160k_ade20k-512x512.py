_base_ = './swinv2-tiny-patch4-window8-in1k-256x256-pre_upernet_8xb2-160k_ade20k-512x512.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_base_patch4_window8_256.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='base',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
