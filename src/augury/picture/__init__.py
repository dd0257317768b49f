"""Pictures of what was measured and of what happened: SVG and HTML from figures and events, in one look."""
