"""Pictures of windows, masks, attention, features and training curves."""
