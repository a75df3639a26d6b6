"""Cryptography: keys, homomorphic schemes and masks; independent of learning and of networks."""
