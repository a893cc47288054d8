# AdamW of Liu et al. 2021, section 4.2; no decay on norms and position tables.
# The learning rate is for 16 images a step.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='AdamW', lr=0.0001, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            'norm': dict(decay_mult=0.)
        }))
auto_scale_lr = dict(enable=False, base_batch_size=16)
