_base_ = [
    '../_base_/models/mask2former_swin_seg.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/optimizers/adamw_swin_backbone-lr0.1.py',
    '../_base_/default_runtime_seg.py'
]
# mmdet's decoder, losses and matching
custom_imports = dict(
    imports=['mmdet.models', 'swin_backbone'], allow_failed_imports=False)
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
model = dict(
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomChoiceResize',
        scales=[int(512 * x * 0.1) for x in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=2048),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

max_iters = 160000
param_scheduler = [
    dict(
        type='PolyLR',
        eta_min=0,
        power=0.9,
        begin=0,
        end=max_iters,
        by_epoch=False)
]
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=5000, save_best='mIoU'))
