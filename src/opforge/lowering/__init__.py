"""From a parameter tree to a flat signature, and back; needs no torch."""
