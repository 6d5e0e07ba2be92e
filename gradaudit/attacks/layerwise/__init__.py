"""The mathematics of attacks that go through a network layer by layer, from its end."""
