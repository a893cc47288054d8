_base_ = './swin-base-patch4-window7-in22k-pre_upernet_8xb2-160k_ade20k-640x640.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_base_patch4_window12_384_22k.pth'  # noqa: E501
model = dict(
    backbone=dict(
        window_size=12,
        pretrain_img_size=384,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
