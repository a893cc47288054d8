_base_ = [
    '../_base_/models/retinanet_swin_fpn.py',
    '../_base_/datasets/coco_detection.py', '../_base_/schedules/swin_1x.py',
    '../_base_/default_runtime_det.py'
]
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v2.0.0/swinv2_tiny_patch4_window8_256.pth'  # noqa: E501
model = dict(
    backbone=dict(
        type='SwinV2Backbone',
        window_size=8,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained)))
# no decay on what the position bias and the cosines' scale are made of
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={
            'cpb_mlp': dict(decay_mult=0.),
            'logit_scale': dict(decay_mult=0.)
        }))
