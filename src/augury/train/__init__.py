"""Draft heads for a target: text it writes itself, kept with its hidden states, and what is fitted to them."""
