"""What the tests of the operators in ops/ share."""
