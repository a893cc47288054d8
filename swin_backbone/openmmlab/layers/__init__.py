"""Layers of mmdet's and mmseg's models, computed otherwise: a config names them, as 'swin_backbone.UPerHead'.

Each is a subclass of the toolbox's layer of that name, with its arguments, parameters and results.
"""
