# A classifier small enough to train in two minutes on two CPU cores, on the
# crops of tools/make_shapes_dataset.py data/shapes-crops --crops
_base_ = '../swin_transformer/swin-tiny_16xb64_in1k.py'

model = dict(
    backbone=dict(
        arch='nano',
        drop_path_rate=0.,
        # the published std of 0.02 is for widths of 96 and more
        init_cfg=dict(type='Xavier', layer='Linear', distribution='normal')),
    head=dict(num_classes=4, in_channels=256, topk=(1, )))
data_preprocessor = dict(num_classes=4)

metainfo = dict(classes=('circle', 'square', 'triangle', 'star'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomResizedCrop',
        scale=64,
        crop_ratio_range=(0.6, 1.),
        interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), interpolation='bicubic'),
    dict(type='PackInputs')
]
data_root = 'data/shapes-crops/'
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/crops_train.txt',
        data_prefix='crops/train',
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/crops_val.txt',
        data_prefix='crops/val',
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1, ))
test_evaluator = val_evaluator

max_epochs = 12
train_cfg = dict(max_epochs=max_epochs, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=40),
    dict(
        type='CosineAnnealingLR',
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True)
]
optim_wrapper = dict(optimizer=dict(lr=0.001, fused=True))
auto_scale_lr = dict(base_batch_size=32)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1))
randomness = dict(seed=0)
