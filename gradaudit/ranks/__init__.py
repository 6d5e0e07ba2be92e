"""Rank of U = [W; ∇_Z J] of a convolution (Chen & Campbell 2021, eq. 4) without forming U."""
