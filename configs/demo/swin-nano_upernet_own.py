# The demo's small UPerNet on your own pictures, each with a PNG of labels: to
# see in minutes, on a CPU, that data and training work.
_base_ = './swin-nano_upernet_shapes.py'

own_data = dict(
    root='data/own',
    classes=None,  # names, in the order of the label values
    ignore_index=255,  # the label value that is neither trained nor tested
    image_suffix='.png',
    label_suffix='.png',
    train=dict(images='images/train', labels='labels/train'),
    val=dict(images='images/val', labels='labels/val'))

crop_size = (240, 320)
model = dict(data_preprocessor=dict(size=crop_size))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomResize',
        scale=(320, 240),
        ratio_range=(1.0, 1.5),
        keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(_delete_=True, type='BaseSegDataset', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    dataset=dict(_delete_=True, type='BaseSegDataset', pipeline=test_pipeline))
test_dataloader = val_dataloader
