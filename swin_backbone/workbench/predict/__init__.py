"""Predictions of a trained model on pictures and videos: as data, and drawn."""
