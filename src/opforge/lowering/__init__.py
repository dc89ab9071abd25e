"""From a parameter tree to a flat signature, and back: no torch, so it can be tested anywhere."""
