"""What docs/how-it-works.md is told with: a few answers, traced, and the pictures drawn of them."""
