"""Its presence puts this folder on the path, where `checking` stands."""
