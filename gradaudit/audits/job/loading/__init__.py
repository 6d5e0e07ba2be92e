"""Loads job folders as NVFlare and Flower compose them, without any training."""
