# SimMIM (Xie et al. 2022) in two minutes on two CPU cores, on the pictures of
# tools/make_shapes_dataset.py data/shapes-crops --crops
_base_ = '../simmim/simmim_swin-tiny_100e_own-192px.py'

model = dict(
    backbone=dict(arch='nano', window_size=6),
    neck=dict(in_channels=256, encoder_stride=32))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=96, crop_ratio_range=(0.67, 1.0)),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='SimMIMMaskGenerator',
        input_size=96,
        mask_patch_size=16,
        model_patch_size=4,
        mask_ratio=0.6),
    dict(type='PackInputs')
]
train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    dataset=dict(
        data_root='data/shapes-crops', data_prefix='images/train',
        pipeline=train_pipeline))
max_epochs = 4
train_cfg = dict(max_epochs=max_epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=10),
    dict(
        type='CosineAnnealingLR',
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True)
]
optim_wrapper = dict(optimizer=dict(lr=0.001))
auto_scale_lr = dict(base_batch_size=16)
default_hooks = dict(
    logger=dict(interval=10),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1))
randomness = dict(seed=0)
