"""How far apart two groups' gradients lie: subspaces, principal angles, permutations."""
