"""What a build leaves on disk, and how it gets there."""
