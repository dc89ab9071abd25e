"""`opforge report`: what a build has and what became of it, as a page and as JSON."""
