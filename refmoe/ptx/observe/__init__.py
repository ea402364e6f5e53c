"""Who watches a launch: traces, profiles, watchpoints."""
