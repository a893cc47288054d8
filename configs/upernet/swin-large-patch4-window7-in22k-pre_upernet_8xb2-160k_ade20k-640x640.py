_base_ = './swin-base-patch4-window7-in22k-pre_upernet_8xb2-160k_ade20k-640x640.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_large_patch4_window7_224_22k.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='large',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    decode_head=dict(in_channels=[192, 384, 768, 1536]),
    auxiliary_head=dict(in_channels=768))
