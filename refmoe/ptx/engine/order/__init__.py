"""What orders accesses: clocks of lanes, what strong accesses and fences pass on, weak outcomes, and who saw what."""
