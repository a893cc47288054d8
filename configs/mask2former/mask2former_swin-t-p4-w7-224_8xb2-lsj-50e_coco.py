_base_ = [
    '../_base_/models/mask2former_swin.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/mask2former_lsj-50e.py',
    '../_base_/default_runtime_det.py'
]
pretrained = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth'  # noqa: E501
num_things_classes = 80
num_stuff_classes = 0
model = dict(
    data_preprocessor=dict(
        pad_seg=False,
        batch_augments=[
            dict(
                type='BatchFixedSizePad',
                size=(1024, 1024),
                img_pad_value=0,
                pad_mask=True,
                mask_pad_value=0,
                pad_seg=False)
        ]),
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=pretrained)),
    panoptic_head=dict(
        num_things_classes=num_things_classes,
        num_stuff_classes=num_stuff_classes,
        loss_cls=dict(class_weight=[1.0] * num_things_classes + [0.1])),
    panoptic_fusion_head=dict(
        num_things_classes=num_things_classes,
        num_stuff_classes=num_stuff_classes),
    test_cfg=dict(panoptic_on=False))
train_pipeline = [
    dict(
        type='LoadImageFromFile',
        to_float32=True,
        backend_args={{_base_.backend_args}}),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    # large scale jittering
    dict(
        type='RandomResize',
        scale=(1024, 1024),
        ratio_range=(0.1, 2.0),
        resize_type='Resize',
        keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_size=(1024, 1024),
        crop_type='absolute',
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True),
    dict(type='PackDetInputs')
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
default_hooks = dict(
    checkpoint=dict(
        by_epoch=False, save_last=True, max_keep_ckpts=3, interval=5000))
log_processor = dict(by_epoch=False)
