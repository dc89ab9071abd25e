"""The rows of a check, by what they need: eager runs, transforms, graphs, exports, devices."""
