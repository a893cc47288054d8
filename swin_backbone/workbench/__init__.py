"""What people do with a model: configs, data, training, prediction, export, pictures, reports. `job.py` is the door."""
