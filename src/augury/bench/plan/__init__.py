"""What to expect on hardware that one does not have: rooflines, drafters, gains."""
