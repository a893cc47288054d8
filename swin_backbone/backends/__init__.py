"""The ways to compute a layer, behind one protocol."""
