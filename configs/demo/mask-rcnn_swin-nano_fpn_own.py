# The demo's small Mask R-CNN on your own pictures, with boxes and masks: to see
# in minutes, on a CPU, that data and training work. Give --data.
_base_ = './mask-rcnn_swin-nano_fpn_shapes.py'

model = dict(
    rpn_head=dict(anchor_generator=dict(ratios=[0.5, 1.0, 2.0])),
    roi_head=dict(
        bbox_roi_extractor=dict(finest_scale=28),
        mask_roi_extractor=dict(
            finest_scale=28, roi_layer=dict(output_size=10)),
        mask_head=dict(num_convs=1)),
    train_cfg=dict(rcnn=dict(sampler=dict(num=128), mask_size=20)),
    test_cfg=dict(
        rpn=dict(nms_pre=500, max_per_img=300), rcnn=dict(max_per_img=100)))
scale = (320, 320)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                   'scale_factor'))
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
default_hooks = dict(checkpoint=dict(interval=10))
