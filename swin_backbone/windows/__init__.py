"""Index arithmetic: which token sits in which window, kinds of masks, relative positions."""
