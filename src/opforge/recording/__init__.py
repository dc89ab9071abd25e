"""Records what programs launch, so that it can be built ahead and served without the JIT."""
