"""The backbones in other frameworks: one file for each framework.

`import swin_backbone.adapters.timm` registers the backbones in timm, for example. Nothing is imported here.
"""
