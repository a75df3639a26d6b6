"""Keys, homomorphic schemes, masks. Knows nothing of learning or of networks."""
