"""Replace the backbone of a toolbox's config, with every setting that depends on the backbone."""
