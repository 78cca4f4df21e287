"""Operators that save exactly what the memory model counts, each beside a plain reference."""
