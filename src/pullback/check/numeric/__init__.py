"""What a subject computes, number by number, against what it should: for the rules about accuracy."""
