"""From a flat signature to an operator: definition, kernels, fake, autograd, vmap, autocast."""
