"""Export a trained model to a folder for ONNX Runtime or OpenVINO, and run the folder.

`runtime.py` imports nothing from the package. A copy of `runtime.py` runs an exported folder.
"""
