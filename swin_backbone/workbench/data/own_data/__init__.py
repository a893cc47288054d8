"""A user's own pictures: layouts of folders, and a config that is filled with one."""
