"""The engine behind HTTP, as OpenAI's interface speaks: chat, completions, responses, tokens, models."""
