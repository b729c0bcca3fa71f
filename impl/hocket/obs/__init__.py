"""What operators and checkers see of a run: traces."""
