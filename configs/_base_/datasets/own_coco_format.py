# Where your own pictures and their annotations in COCO's format are; see
# swin_backbone/workbench/data/own_data/config.py
own_data = dict(
    root='data/own',
    train=dict(
        images='images/train',
        annotations='annotations/instances_train.json'),
    val=dict(
        images='images/val', annotations='annotations/instances_val.json'))
