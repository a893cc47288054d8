"""From a trained model to a file that runs without this package, and running it.

`runtime.py` imports nothing of this package: copied beside an exported folder, it is all that is needed there.
"""
