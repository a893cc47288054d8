# Hybrid Task Cascade with FPN and a semantic branch on Swin (Chen et al. 2019)
_base_ = './cascade-mask-rcnn_swin_fpn.py'
model = dict(
    type='HybridTaskCascade',
    data_preprocessor=dict(pad_seg=True),
    roi_head=dict(
        type='HybridTaskCascadeRoIHead',
        interleaved=True,
        mask_info_flow=True,
        bbox_head=[
            dict(
                type='ConvFCBBoxHead',
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=80,
                bbox_coder=dict(
                    type='DeltaXYWHBBoxCoder',
                    target_means=[0., 0., 0., 0.],
                    target_stds=target_stds),
                reg_class_agnostic=True,
                reg_decoded_bbox=True,
                norm_cfg=dict(type='SyncBN', requires_grad=True),
                loss_cls=dict(
                    type='CrossEntropyLoss',
                    use_sigmoid=False,
                    loss_weight=1.0),
                loss_bbox=dict(type='GIoULoss', loss_weight=10.0))
            for target_stds in ([0.1, 0.1, 0.2, 0.2], [
                0.05, 0.05, 0.1, 0.1
            ], [0.033, 0.033, 0.067, 0.067])
        ],
        mask_head=[
            dict(
                type='HTCMaskHead',
                with_conv_res=stage > 0,
                num_convs=4,
                in_channels=256,
                conv_out_channels=256,
                num_classes=80,
                loss_mask=dict(
                    type='CrossEntropyLoss', use_mask=True, loss_weight=1.0))
            for stage in range(3)
        ],
        semantic_roi_extractor=dict(
            type='swin_backbone.SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=0),
            out_channels=256,
            featmap_strides=[8]),
        semantic_head=dict(
            type='FusedSemanticHead',
            num_ins=5,
            fusion_level=1,
            seg_scale_factor=1 / 8,
            num_convs=4,
            in_channels=256,
            conv_out_channels=256,
            num_classes=183,
            loss_seg=dict(
                type='CrossEntropyLoss', ignore_index=255, loss_weight=0.2))),
    # HTC++ keeps more, weaker boxes and lowers the scores of those that overlap
    test_cfg=dict(
        rcnn=dict(
            score_thr=0.001,
            nms=dict(_delete_=True, type='soft_nms', iou_threshold=0.5))))
