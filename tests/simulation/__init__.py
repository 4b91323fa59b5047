"""Every schedule of faults that fits, run over the product's own code, and checked.

`python -m tests.simulation` runs the real `BatchDriver` and `Recovery`, with the real recipe, against a broker made of
the real coordinator and the real rules of partition leaders (`broker`), and against a database in memory
that has transactions, one lock per row, sessions that can be ended, and COMMITs whose answer is lost (`database`).

Each request of a driver is a *choice point* (`world.World.io`): it goes through, or it, its driver, the broker, the
database, or the clock fails there, or another driver is started there and this one goes on later. A *schedule* names
the points at which something else was chosen (`schedule`). `explore` runs all schedules with one fault, then all with
two, and then random ones with more. `checkers` judge what is left when nothing runs any more. `defects` break the
product in known ways, each of which a checker must notice.

In some profiles `people` act, too, at any point and in answer to a halt; the ledger says what they have accepted, and
what ends without an error must be right but for that.

Reading order: `world`, `drivers`, `faults`, `people`, `broker`, `database`, `checkers`, `explore`.
"""
