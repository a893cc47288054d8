_base_ = './swinv2-tiny-patch4-window8-in1k-256x256-pre_upernet_8xb2-160k_ade20k-512x512.py'  # noqa: E501
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_large_patch4_window12to16_192to256_22kto1k_ft.pth'  # noqa: E501
model = dict(
    backbone=dict(
        arch='large',
        # pre-trained at window 12, fine-tuned at 16; its last stage, where a
        # picture of 256x256 is 8x8, at 6 and 8
        window_size=(16, 16, 16, 8),
        pretrained_window_sizes=(12, 12, 12, 6),
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    decode_head=dict(in_channels=[192, 384, 768, 1536]),
    auxiliary_head=dict(in_channels=768))
