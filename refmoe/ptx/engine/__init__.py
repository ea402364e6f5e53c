"""What runs: lanes, frames, and what instructions do that touch memory or several lanes."""
