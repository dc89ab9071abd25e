"""The source of the library that the tests load, and what is called first."""
