"""Another backbone in any config of the toolboxes, and what in the config follows from it."""
