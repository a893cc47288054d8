"""Pictures and annotations: reading and checking them, the user's own, and the order in which a training sees them."""
