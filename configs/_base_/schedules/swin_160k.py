# 160k iterations (Liu et al. 2021, section 4.3)
_base_ = '../optimizers/adamw_swin.py'

train_cfg = dict(
    type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR',
        eta_min=0.0,
        power=1.0,
        begin=1500,
        end=160000,
        by_epoch=False)
]
optim_wrapper = dict(optimizer=dict(lr=0.00006, weight_decay=0.01))
