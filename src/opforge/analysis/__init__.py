"""From a function to what it says: its signature, its kernels, and the mode that follows."""
