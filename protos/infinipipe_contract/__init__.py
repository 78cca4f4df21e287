"""What a plan means: data, codec, validation, replay and text, shared by the planner and the executor.

The contract is pure: it does no I/O and imports only the standard library, protobuf and the generated code.
"""
