"""Configs: finding, changing, comparing and checking them."""
