"""For people who move from Hugging Face Accelerate: the places where ``accelerate.commands`` has its public names.

Thin: each module gives the command line's own functions Accelerate's names and signatures.
"""
