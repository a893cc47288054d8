"""What people do with a model: configs, data, training, prediction, export, pictures. `job.py` is the door."""
