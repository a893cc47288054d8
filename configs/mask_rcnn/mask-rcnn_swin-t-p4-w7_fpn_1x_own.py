# Mask R-CNN Swin-T on your own pictures, with boxes and masks in any format of
# docs/guides/own_data.md:
#   python tools/train.py configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_own.py \
#       --data /data/bolts
_base_ = './mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'
