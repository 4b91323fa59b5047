"""Real violence: the orders example, a sink of several outputs and the bare batch driver, and all around them killed.

::

    .venv/bin/python -m tests.chaos --minutes 3            # a start of everything, each kind of fault, a comparison
    .venv/bin/python -m tests.chaos --kills 200 --seed 7   # seed 7 is the same plan each time
    .venv/bin/python -m tests.chaos --jobs outputs         # three topics and three tables in each decision

Two jobs run at the same time on one broker and one PostgreSQL, both through proxies. ``orders`` is the example, on a
Spark cluster of two workers; ``rows`` is the same driver and recovery without Spark, which starts in a moment, so that
most of the kills are cheap. ``outputs`` can take the place of ``orders``: a query of the real sink on local Spark, that
writes three topics, three tables and dead letters in one decision. A plan, drawn from the seed, says what happens next;
after each fault the jobs it can have harmed must come back within a deadline. At the end both sides are read by
independent clients and compared with the input.

Reading order: ``plan`` (what happens), ``faults`` (how, and the table of kinds), ``jobs``, ``outputs_job`` (to what),
``world`` (all of it), ``run`` (what is compared), ``__main__``.
"""
