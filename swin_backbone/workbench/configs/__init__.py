"""Find, change and check configs."""
