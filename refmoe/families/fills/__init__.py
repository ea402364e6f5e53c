"""Input data that several families share."""
