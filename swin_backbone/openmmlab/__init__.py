"""What touches the toolboxes' configs and runners: everything here knows mmengine, and mmdet or mmseg where it must."""
