"""Claims about hocket and the means to check them; the adapter between product and specification."""
