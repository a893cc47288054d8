# ATSS with FPN on Swin-T (Zhang et al. 2020; Liu et al. 2021, section 4.2)
_base_ = './retinanet_swin_fpn.py'
model = dict(
    type='ATSS',
    neck=dict(add_extra_convs='on_output'),
    bbox_head=dict(
        type='ATSSHead',
        anchor_generator=dict(
            _delete_=True,
            type='AnchorGenerator',
            ratios=[1.0],
            octave_base_scale=8,
            scales_per_octave=1,
            strides=[8, 16, 32, 64, 128]),
        bbox_coder=dict(target_stds=[0.1, 0.1, 0.2, 0.2]),
        loss_bbox=dict(_delete_=True, type='GIoULoss', loss_weight=2.0),
        loss_centerness=dict(
            type='CrossEntropyLoss', use_sigmoid=True, loss_weight=1.0)),
    train_cfg=dict(
        _delete_=True,
        assigner=dict(type='ATSSAssigner', topk=9),
        allowed_border=-1,
        pos_weight=-1,
        debug=False),
    test_cfg=dict(nms=dict(iou_threshold=0.6)))
