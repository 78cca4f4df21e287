"""What other systems would need for a batch: cost models without a pipeline, and comparison with plans.

Entry point: ``compare_methods`` (comparison). There is one module a system; each takes its numbers from the profile and
says in its docstring what it models and what it leaves out.
"""
