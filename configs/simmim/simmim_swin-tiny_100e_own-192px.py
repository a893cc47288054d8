# SimMIM (Xie et al. 2022, section 4.1) on one's own pictures: any folder of
# them, without labels. Needs mmpretrain.
_base_ = '../_base_/optimizers/adamw_swin.py'
default_scope = 'mmpretrain'
custom_imports = dict(imports=['swin_backbone'])

model = dict(
    type='SimMIM',
    backbone=dict(
        type='SimMIMSwinBackbone',
        arch='tiny',
        window_size=6,
        drop_path_rate=0.,
        small_map='shrink'),
    neck=dict(
        type='SimMIMLinearDecoder', in_channels=768, encoder_stride=32),
    head=dict(
        type='SimMIMHead',
        patch_size=4,
        loss=dict(type='PixelReconstructionLoss', criterion='L1', channel=3)))
data_preprocessor = dict(
    type='SelfSupDataPreprocessor',
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=192, crop_ratio_range=(0.67, 1.0)),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='SimMIMMaskGenerator',
        input_size=192,
        mask_patch_size=32,
        model_patch_size=4,
        mask_ratio=0.6),
    dict(type='PackInputs')
]
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        type='CustomDataset',
        data_root='data/pictures',
        with_label=False,
        pipeline=train_pipeline))

# 2e-4 for 512 images a step
optim_wrapper = dict(
    optimizer=dict(lr=2e-4),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0))
auto_scale_lr = dict(base_batch_size=512)
max_epochs = 100
train_cfg = dict(by_epoch=True, max_epochs=max_epochs)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=5e-3,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        T_max=90,
        eta_min=1e-5,
        by_epoch=True,
        begin=10,
        end=max_epochs,
        convert_to_iter_based=True)
]

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=100),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=10, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'))
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
