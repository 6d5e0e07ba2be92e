"""The game of releases that an audit of a mechanism plays."""
