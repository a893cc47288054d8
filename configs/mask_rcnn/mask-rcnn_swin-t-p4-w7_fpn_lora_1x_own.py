# Your own data, few of them: the backbone is frozen, and LoRA's small matrices
# beside its linear layers are trained, with the neck and the heads
# (docs/guides/other_toolboxes.md#peft)
_base_ = './mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'

custom_imports = dict(imports=['swin_backbone', 'swin_backbone.adapters.peft'])
model = dict(
    backbone=dict(type='LoraSwinBackbone', lora=dict(r=8, lora_alpha=16)))
