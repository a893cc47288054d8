"""One's own pictures: what lies in a folder, and a config that is filled with it."""
