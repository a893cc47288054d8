# 50 epochs of COCO at 16 images a step
_base_ = '../optimizers/adamw_swin_backbone-lr0.1.py'

max_iters = 368750
interval = 5000
param_scheduler = dict(
    type='MultiStepLR',
    begin=0,
    end=max_iters,
    by_epoch=False,
    milestones=[327778, 355092],
    gamma=0.1)
# every 5000 iterations, and once more at the end
train_cfg = dict(
    type='IterBasedTrainLoop',
    max_iters=max_iters,
    val_interval=interval,
    dynamic_intervals=[(max_iters // interval * interval + 1, max_iters)])
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
