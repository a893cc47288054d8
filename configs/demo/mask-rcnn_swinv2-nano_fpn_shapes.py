# The demo of mask-rcnn_swin-nano_fpn_shapes.py with Swin V2
_base_ = './mask-rcnn_swin-nano_fpn_shapes.py'

model = dict(backbone=dict(type='SwinV2Backbone', window_size=8))
optim_wrapper = dict(
    # blocks start as the identity and have a norm behind each branch: twice
    # V1's rate is better than V1's in a run as short as this
    optimizer=dict(lr=0.002),
    paramwise_cfg=dict(
        custom_keys={
            'cpb_mlp': dict(decay_mult=0.),
            'logit_scale': dict(decay_mult=0.)
        }))
