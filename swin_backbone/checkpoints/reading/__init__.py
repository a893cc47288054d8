"""Reading a checkpoint file as plain data: nothing in it is executed, and no more memory is taken than it may."""
