_base_ = './simmim_swin-nano_shapes.py'

model = dict(
    backbone=dict(
        _delete_=True, type='SimMIMSwinV2Backbone', arch='nano',
        window_size=6))
