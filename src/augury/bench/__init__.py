"""Speed, measured in pairs: the same prompts, the same engine, plain and drafted in turn."""
