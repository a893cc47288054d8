"""Read the data of a user, of any layout, once, and write an index, a file for each split, which trainings share."""
