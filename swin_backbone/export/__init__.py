"""Export a trained model to a folder for ONNX Runtime, OpenVINO or torch, and run the folder.

`runtime.py` imports nothing from this package: a copy of `runtime.py` runs an exported folder.
"""
