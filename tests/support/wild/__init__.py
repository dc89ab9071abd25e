"""Programs over packages that nobody here wrote; each module has `results(rows, device)`."""
