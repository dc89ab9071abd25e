"""The rows of a check, by what they need: eager runs, autograd, vmap, graphs, exports, devices."""
