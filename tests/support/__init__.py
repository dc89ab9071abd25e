"""What several tests, and the processes that they start, share."""
