"""The functions that ship, executed on symbols: values that fork, all paths of a function, and what is
proved of them.
"""
