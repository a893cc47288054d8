"""Export a trained model to a file that runs without this package, and run it.

`runtime.py` imports nothing from this package. Copied next to an exported folder, it is the only code needed there.
"""
