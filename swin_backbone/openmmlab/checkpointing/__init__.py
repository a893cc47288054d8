"""The checkpoints of a training: written whole, the latest found, loaded through mmengine's Runner."""
