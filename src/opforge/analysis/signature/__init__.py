"""A signature, read: resolved annotations, the parameter tree, a schema given by hand."""
