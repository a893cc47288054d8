"""The backbones under the names and in the interfaces of other frameworks: a file for each, which imports it.

Nothing is imported here. `import swin_backbone.adapters.timm` registers the backbones in timm, and so on.
"""
