"""Shows runs while they happen. Nothing in it is about expenses or the shop."""
