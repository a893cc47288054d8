# UPerNet small enough to train in minutes on two CPU cores, on the data of
# `tools/make_shapes_dataset.py data/shapes --shape 256 --train 1000
# --visible 0.75`
_base_ = [
    '../_base_/models/upernet_swin.py',
    '../_base_/optimizers/adamw_swin.py',
    '../_base_/default_runtime_seg.py'
]

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        arch='nano',
        drop_path_rate=0.,
        # the published std of 0.02 is for widths of 96 and more
        init_cfg=dict(type='Xavier', layer='Linear', distribution='normal')),
    decode_head=dict(
        in_channels=[32, 64, 128, 256],
        channels=64,
        num_classes=5,
        norm_cfg=norm_cfg),
    auxiliary_head=dict(
        in_channels=128, channels=32, num_classes=5, norm_cfg=norm_cfg))

data_root = 'data/shapes/'
metainfo = dict(
    classes=('background', 'circle', 'square', 'triangle', 'star'),
    palette=[[0, 0, 0], [230, 60, 60], [60, 200, 60], [70, 110, 240],
             [240, 200, 40]])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=(128, 128), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        img_suffix='.png',
        seg_map_suffix='.png',
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        metainfo=metainfo,
        data_root=data_root,
        data_prefix=dict(img_path='images/val', seg_map_path='labels/val'),
        img_suffix='.png',
        seg_map_suffix='.png',
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

max_iters = 2000
train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=40),
    dict(
        type='PolyLR',
        eta_min=0.0,
        power=1.0,
        begin=40,
        end=max_iters,
        by_epoch=False)
]
optim_wrapper = dict(
    optimizer=dict(lr=0.001, fused=True, weight_decay=0.01),
    clip_grad=dict(max_norm=5.))
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(interval=100, max_keep_ckpts=1))
randomness = dict(seed=1)
