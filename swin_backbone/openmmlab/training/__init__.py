"""A training around mmengine's Runner: how it is run, watched, stopped, and kept from mixing with another."""
