"""A soak: thousands of small batches, and whatever must not grow with them is watched (`make soak`).

Two loads run side by side against one broker and one PostgreSQL, each a process of its own: a streaming query of Spark
through `DualWriteSink` (`spark_load`), which is what users run, and the batch driver alone (`bare_load`), which does
the steps of the recipe many times as often. A third process (`__main__`) starts them, takes samples from the outside,
judges each series (`verdict`), and compares both sides in the end.
"""
