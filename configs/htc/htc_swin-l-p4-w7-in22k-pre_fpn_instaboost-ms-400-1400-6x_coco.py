_base_ = './htc_swin-b-p4-w7-in22k-pre_fpn_instaboost-ms-400-1400-6x_coco.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_large_patch4_window7_224_22k.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='large',
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    neck=[
        dict(type='GlobalAttention', embed_dims=1536, num_heads=48),
        dict(
            type='FPN',
            in_channels=[192, 384, 768, 1536],
            out_channels=256,
            num_outs=5)
    ])
