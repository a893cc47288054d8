"""Train with mmengine's Runner: run, watch, stop and lock a training."""
