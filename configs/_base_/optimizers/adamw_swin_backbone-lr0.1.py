# AdamW as the DETR family trains: the backbone at a tenth of the learning rate,
# no decay on norms, position tables and embeddings. Of all keys that are part
# of a parameter's name the longest counts, so each of the backbone's repeats
# the rate. Blocks that a smaller Swin does not have match nothing.
embed_multi = dict(lr_mult=1.0, decay_mult=0.0)
backbone_norm_multi = dict(lr_mult=0.1, decay_mult=0.0)
custom_keys = {
    'backbone': dict(lr_mult=0.1, decay_mult=1.0),
    'backbone.patch_embed.norm': backbone_norm_multi,
    'backbone.norm': backbone_norm_multi,
    'absolute_pos_embed': backbone_norm_multi,
    'relative_position_bias_table': backbone_norm_multi,
    'query_embed': embed_multi,
    'query_feat': embed_multi,
    'level_embed': embed_multi
}
custom_keys.update({
    f'backbone.stages.{stage}.blocks.{block}.norm': backbone_norm_multi
    for stage, depth in enumerate((2, 2, 18, 2)) for block in range(depth)
})
custom_keys.update({
    f'backbone.stages.{stage}.downsample.norm': backbone_norm_multi
    for stage in range(3)
})
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='AdamW',
        lr=0.0001,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=custom_keys, norm_decay_mult=0.0),
    clip_grad=dict(max_norm=0.01, norm_type=2))
auto_scale_lr = dict(enable=False, base_batch_size=16)
