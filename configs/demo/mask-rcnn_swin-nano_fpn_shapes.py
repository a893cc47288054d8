# Mask R-CNN small enough to train in minutes on two CPU cores, on the data of
# `tools/make_shapes_dataset.py data/shapes --shape 256 --train 1000
# --visible 0.75`
_base_ = [
    '../_base_/models/mask-rcnn_swin_fpn.py',
    '../_base_/optimizers/adamw_swin.py',
    '../_base_/default_runtime_det.py'
]

norm_cfg = dict(type='BN')  # from scratch, heads without a norm learn slowly
model = dict(
    backbone=dict(
        arch='nano',
        drop_path_rate=0.,
        # the published std of 0.02 is for widths of 96 and more
        init_cfg=dict(type='Xavier', layer='Linear', distribution='normal')),
    neck=dict(
        in_channels=[32, 64, 128, 256],
        out_channels=64,
        num_outs=4,
        norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(
            scales=[6], ratios=[1.0], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(
            finest_scale=16,
            roi_layer=dict(output_size=5, sampling_ratio=1), out_channels=64),
        bbox_head=dict(
            in_channels=64,
            roi_feat_size=5,
            fc_out_channels=256,
            num_classes=4),
        mask_roi_extractor=dict(
            finest_scale=40,
            roi_layer=dict(output_size=14, sampling_ratio=1), out_channels=64),
        mask_head=dict(
            num_convs=2,
            in_channels=64,
            conv_out_channels=64,
            num_classes=4,
            norm_cfg=norm_cfg)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=400, max_per_img=200),
        rcnn=dict(sampler=dict(num=48))),
    test_cfg=dict(
        rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=30)))

data_root = 'data/shapes/'
metainfo = dict(
    classes=('circle', 'square', 'triangle', 'star'),
    palette=[(230, 60, 60), (60, 200, 60), (70, 110, 240), (240, 200, 40)])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                   'scale_factor'))
]
train_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/val/'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + 'annotations/instances_val.json',
    metric=['bbox', 'segm'])
test_evaluator = val_evaluator

max_epochs = 3
train_cfg = dict(
    type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True)
]
optim_wrapper = dict(
    optimizer=dict(lr=0.001, fused=True, weight_decay=0.05),
    clip_grad=dict(max_norm=5.))
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1))
randomness = dict(seed=1)
