"""Claims about hocket and the means to check them: proofs, exhaustive checks, and the adapter to the specification."""
