"""Steps of single threads, under a schedule of a short launch, and what a thread may put off."""
