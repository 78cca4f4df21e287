"""InfiniPipe."""
