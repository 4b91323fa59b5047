"""The pure decisions of the dual-write recipe (KIP-939, "Normal processing recipe" and "Recovery recipe").

``dual_write`` names the steps of a batch in their order, ``placement`` says what a batch id means beside a state
row, ``resolve`` says what to do about two sides that a crash left apart. None of them does I/O, reads a clock or
draws a random number: the same input gives the same answer, in a running job, in recovery and in a simulation.
"""
