"""Makes an operator from a flat signature: definition, kernels, fake, autograd, vmap, autocast."""
