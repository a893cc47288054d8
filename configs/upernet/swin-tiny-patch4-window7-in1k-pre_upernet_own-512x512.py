# UPerNet Swin-T on your own pictures, each with a PNG of labels:
#   python tools/train.py configs/upernet/swin-tiny-patch4-window7-in1k-pre_upernet_own-512x512.py \
#       --data /data/streets
_base_ = './swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'  # noqa: E501

# ADE20K counts its labels from 1; yours count from 0
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomResize',
        scale=(2048, 512),
        ratio_range=(0.5, 2.0),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(type='BaseSegDataset', pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(type='BaseSegDataset', pipeline=test_pipeline))
test_dataloader = val_dataloader
