"""Layers of mmdet and mmseg in another computation: subclasses of equal names, arguments, parameters and results.

A config names them with this package's scope, for example 'swin_backbone.UPerHead'.
"""
