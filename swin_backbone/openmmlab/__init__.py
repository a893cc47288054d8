"""Configs and runners of the toolboxes: code with mmengine, and with mmdet or mmseg."""
