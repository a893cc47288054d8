# Mask R-CNN Swin-T on your own pictures, annotated in COCO's format:
#   python tools/train.py configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_own.py \
#       --cfg-options own_data.root=/data/bolts
# Classes are read from the annotation file.
_base_ = [
    './mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    '../_base_/datasets/own_coco_format.py'
]
