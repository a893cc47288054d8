"""Read the data of a user, of any layout, once, and write an index of each split, which trainings share."""
