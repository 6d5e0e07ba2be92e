"""Plans of layers to hide, blur or prune so that a policy passes, at the least cost."""
