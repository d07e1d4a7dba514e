"""How a host of the tests writes dates."""
