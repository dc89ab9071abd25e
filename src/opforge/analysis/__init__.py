"""From a function to what its annotations say."""
