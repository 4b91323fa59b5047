----------------------------- MODULE DualWrite -----------------------------
(***************************************************************************
 One transactional id, one state row, and the drivers that write batches
 through both (KIP-939's recipe on transaction.version 2).

   coordinator  one transaction at a time; EndTxn bumps the epoch (KIP-890);
                with TwoPhase a transaction never times out, and Keep says
                what InitProducerId(keepPreparedTxn) does (KIP-939)
   driver       claim, look, resolve, InitProducerId; then batch after batch:
                place, produce, decide, EndTxn, note
   people       restore a backup, drop an owed batch, accept what is lost

 The actions are named like the steps of recipe/steps.py and the verdicts of
 recipe/resolve.py.  One producer id suffices: it changes only when its last
 epoch is used, by InitProducerId alone.  A crash may come between any two
 actions; an answer may be lost; a request may arrive after its sender died.
 ***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Drivers,    \* processes that may run the job, several at a time by mistake
    Batches,    \* number of batches
    Faults,     \* how many crashes, lost answers, time-outs, second drivers
    Restores,   \* how many times a person restores the backup
    Drops,      \* how many owed batches a person may give up
    TwoPhase,   \* the broker grants two-phase commit: no time-out
    Keep,       \* "no", "bumps" (keeps and bumps the epoch), "same" (keeps, no append)
    Mutant      \* "none", or the defect that is built in

VARIABLES
    kafka,      \* the coordinator's entry of the transactional id
    log,        \* control markers in the partitions: [txn, batch, commit, writes]
    row,        \* the state row
    table,      \* how many times each batch is in the table
    spark,      \* the first batch that Spark's checkpoint does not have
    driver,     \* where each driver is, and what it knows
    net,        \* EndTxn(commit) requests on their way: [by, epoch]
    backup,     \* an older state of the database
    left,       \* faults that may still happen
    ledger      \* what people have accepted: batches given up or lost

vars == <<kafka, log, row, table, spark, driver, net, backup, left, ledger>>

Ids      == 0 .. Batches - 1
None     == Batches                \* no batch
NoTxn    == 0                      \* epochs of transactions begin at 1
Max(S)   == CHOOSE x \in S : \A y \in S : y <= x

(* How often read_committed readers see a batch: a transaction may have its records more than once. *)
Committed(b)  == Cardinality(UNION {{m} \X (1 .. m.writes) : m \in {m \in log : m.batch = b /\ m.commit}})
MarkerOf(txn) == {m \in log : m.txn = txn}
Unseen == [state |-> "Empty", epoch |-> 0, txn |-> NoTxn]
(* What a driver knows: its epoch, its batch, what Kafka showed, and the row's decision when it last saw it. *)
Off    == [at |-> "off", epoch |-> 0, batch |-> None, resend |-> FALSE, seen |-> Unseen, prepared |-> NoTxn]
(* The logs after the row's offsets show commits that the row does not know. *)
Behind == \E m \in log : m.commit /\ m.txn > row.prepared

Init ==
    /\ kafka  = [state |-> "Empty", epoch |-> 1, txn |-> NoTxn, batch |-> None, writes |-> 0, kept |-> FALSE]
    /\ log    = {}
    /\ row    = [status |-> "none", batch |-> None, prepared |-> NoTxn, claim |-> "none"]
    /\ table  = [b \in Ids |-> 0]
    /\ spark  = 0
    /\ driver = [d \in Drivers |-> Off]
    /\ net    = {}
    /\ backup = [row |-> row, table |-> table]
    /\ left   = [faults |-> Faults, restores |-> Restores, drops |-> Drops]
    /\ ledger = {}

----------------------------------------------------------------------------
(* The coordinator. *)

AtRest == kafka.state \in {"Empty", "CompleteCommit", "CompleteAbort"}

Fault  == left.faults > 0 /\ left' = [left EXCEPT !.faults = @ - 1]

(* The end of a transaction is decided; markers follow. *)
Ending(state) == [kafka EXCEPT !.state = state, !.epoch = @ + 1]

WriteMarkers ==
    /\ kafka.state \in {"PrepareCommit", "PrepareAbort"}
    /\ log' = log \cup {[txn |-> kafka.txn, batch |-> kafka.batch, commit |-> kafka.state = "PrepareCommit",
                            writes |-> kafka.writes]}
    /\ kafka' = [kafka EXCEPT !.state = IF @ = "PrepareCommit" THEN "CompleteCommit" ELSE "CompleteAbort",
                              !.kept = FALSE]
    /\ UNCHANGED <<row, table, spark, driver, net, backup, left, ledger>>

TimeOut ==
    /\ ~TwoPhase /\ kafka.state = "Ongoing" /\ Fault
    /\ kafka' = Ending("PrepareAbort")
    /\ UNCHANGED <<log, row, table, spark, driver, net, backup, ledger>>

(* EndTxn(commit) at an epoch: done, repeated, or refused.  Its sender has the answer if it still waits. *)
ReceiveEndTxn ==
    \E m \in net :
        LET fits   == kafka.state = "Ongoing" /\ kafka.epoch = m.epoch
            again  == kafka.state = "CompleteCommit" /\ kafka.epoch = m.epoch + 1
            waits  == driver[m.by].at \in {"ending", "settling"} /\ driver[m.by].epoch = m.epoch
            answer == IF driver[m.by].at = "ending" THEN IF fits \/ again THEN "ended" ELSE "claim"
                                                    ELSE IF fits \/ again THEN "settled" ELSE "look"
        IN  /\ net' = net \ {m}
            /\ kafka' = IF fits THEN Ending("PrepareCommit") ELSE kafka
            /\ driver' = IF waits THEN [driver EXCEPT ![m.by].at = answer,
                                                      ![m.by].epoch = IF answer = "look" THEN 0 ELSE @] ELSE driver
            /\ UNCHANGED <<log, row, table, spark, backup, left, ledger>>

(* A person's InitProducerId(keepPreparedTxn) arrives late, in a transaction of which that person knew nothing.  Its epoch
   is known to no driver, and the old one is still what the coordinator shows. *)
LateKeep ==
    /\ Keep = "bumps" /\ kafka.state = "Ongoing" /\ Fault
    /\ kafka' = [kafka EXCEPT !.epoch = @ + 1, !.kept = TRUE]
    /\ UNCHANGED <<log, row, table, spark, driver, net, backup, ledger>>

----------------------------------------------------------------------------
(* A driver: from its start to a usable producer (recovery). *)

Go(d, at) == driver' = [driver EXCEPT ![d].at = at]
Stop(d)   == driver' = [driver EXCEPT ![d] = Off]
Halted    == \E d \in Drivers : driver[d].at = "halted"
Running   == {d \in Drivers : driver[d].at \notin {"off", "halted", "finished"}}
Mine(d)   == row.claim = d

Start(d) ==
    /\ driver[d].at = "off" /\ spark < Batches /\ ~Halted
    /\ IF Running = {} THEN UNCHANGED left ELSE Fault
    /\ driver' = [driver EXCEPT ![d] = [Off EXCEPT !.at = IF Mutant = "look before the claim" THEN "look" ELSE "start"]]
    /\ UNCHANGED <<kafka, log, row, table, spark, net, backup, ledger>>

Crash(d) ==
    /\ d \in Running /\ Fault
    /\ driver' = [driver EXCEPT ![d] = Off]
    /\ UNCHANGED <<kafka, log, row, table, spark, net, backup, ledger>>

(* From here on no older driver can decide.  A driver that had the claim takes it again only if it still has it. *)
Claim(d) ==
    /\ driver[d].at \in {"start", "claim"}
    /\ IF driver[d].at = "claim" /\ ~Mine(d)
       THEN Stop(d) /\ UNCHANGED row                                           \* superseded
       ELSE /\ row' = [row EXCEPT !.claim = d]
            /\ driver' = [driver EXCEPT ![d].at = IF Mutant = "look before the claim" THEN "resolve" ELSE "look",
                                        ![d].epoch = 0]
    /\ UNCHANGED <<kafka, log, table, spark, net, backup, left, ledger>>

Look(d) ==
    /\ driver[d].at = "look"
    /\ driver' = [driver EXCEPT ![d].seen = [state |-> kafka.state, txn |-> kafka.txn,
                                             epoch |-> IF kafka.state = "Ongoing" THEN kafka.txn ELSE kafka.epoch],
                                ![d].at = IF Mutant = "look before the claim" /\ ~Mine(d) THEN "start" ELSE "resolve"]
    /\ UNCHANGED <<kafka, log, row, table, spark, net, backup, left, ledger>>

(* recipe/resolve.py, for transaction.version 2. *)
Verdict(seen) ==
    LET own      == row.prepared
        open     == seen.state = "Ongoing"
        ending   == seen.state \in {"PrepareCommit", "PrepareAbort"}
        outcome  == seen.epoch = own + 1
        marker   == MarkerOf(own)
        behind   == Behind /\ Mutant # "commits of no row are overlooked"
    IN  IF row.status # "decided"
        THEN IF behind THEN "halt"
             ELSE IF ending THEN "wait" ELSE IF open THEN "abort" ELSE "nothing"
        ELSE IF open /\ seen.txn = own
             THEN IF Mutant = "a decided transaction is aborted" THEN "abort" ELSE "commit"
        ELSE IF seen.state = "CompleteCommit" /\ outcome THEN "done"
        ELSE IF seen.state = "CompleteAbort" /\ outcome
             THEN IF Mutant = "an aborted decision is noted as done" THEN "done" ELSE "owed"
        ELSE IF ending THEN "wait"
        ELSE IF behind THEN "halt"
        ELSE IF Mutant = "the log is not asked" THEN "owed"
        ELSE IF marker = {} THEN "halt"
        ELSE IF \A m \in marker : m.commit THEN "done" ELSE "owed"

(* Nothing is in doubt.  A driver that looked a second time has its epoch already. *)
Ready(d) == IF driver[d].epoch = 0 THEN "init" ELSE "place"

Resolve(d) ==
    /\ driver[d].at = "resolve"
    /\ LET verdict == Verdict(driver[d].seen)
           (* A marker says how one transaction ended, and nothing of later ones. *)
           told          == ~(driver[d].seen.state \in {"CompleteCommit", "CompleteAbort"}
                              /\ driver[d].seen.epoch = row.prepared + 1)
           noted(status) == IF Mine(d)
                            THEN row' = [row EXCEPT !.status = status] /\ Go(d, IF told THEN "look" ELSE Ready(d))
                            ELSE Stop(d) /\ UNCHANGED row
       IN  CASE verdict = "nothing" -> Go(d, Ready(d)) /\ UNCHANGED <<row, net, left>>
             [] verdict = "abort"   -> Go(d, IF Mutant = "InitProducerId aborts" THEN "init" ELSE "abort")
                                       /\ UNCHANGED <<row, net, left>>
             [] verdict = "wait"    -> Go(d, "look") /\ UNCHANGED <<row, net, left>>
             [] verdict = "halt"    -> (IF Mine(d) THEN Go(d, "halted") ELSE Stop(d)) /\ UNCHANGED <<row, net, left>>
             [] verdict = "done"    -> noted("done") /\ UNCHANGED <<net, left>>
             [] verdict = "owed"    -> noted("owed") /\ UNCHANGED <<net, left>>
             [] verdict = "commit"  ->
                    IF Mutant = "recovery never sends EndTxn" THEN Go(d, "look") /\ UNCHANGED <<row, net, left>>
                    ELSE IF ~Mine(d) THEN Stop(d) /\ UNCHANGED <<row, net, left>>
                    ELSE IF Keep # "no" THEN Go(d, "keep") /\ UNCHANGED <<row, net, left>>
                    ELSE /\ driver' = [driver EXCEPT ![d].at = "settling", ![d].epoch = row.prepared]
                         /\ net' = net \cup {[by |-> d, epoch |-> row.prepared]}
                         /\ UNCHANGED <<row, left>>
    /\ UNCHANGED <<kafka, log, table, spark, backup, ledger>>

(* EndTxn(abort) at the epoch that was shown.  InitProducerId would abort too, and not tell whether a commit came first. *)
AbortOpen(d) ==
    /\ driver[d].at = "abort"
    /\ LET open == kafka.state = "Ongoing" /\ kafka.txn = driver[d].seen.txn
       IN  IF open /\ kafka.epoch = driver[d].seen.epoch
           THEN kafka' = Ending("PrepareAbort") /\ Go(d, Ready(d))
           ELSE UNCHANGED kafka /\ Go(d, IF open /\ Mine(d) /\ Keep # "no" /\ Mutant # "the shown epoch must end it"
                                        THEN "take over" ELSE "look")            \* refused, and looked at again
    /\ UNCHANGED <<log, row, table, spark, net, backup, left, ledger>>

(* InitProducerId(keepPreparedTxn=true) for a transaction that refused the shown epoch.  Another may be open by now, or
   none: then it is an InitProducerId like any other. *)
TakeOver(d) ==
    /\ driver[d].at = "take over"
    /\ kafka.state \notin {"PrepareCommit", "PrepareAbort"}
    /\ LET open  == kafka.state = "Ongoing"
           epoch == IF open /\ Keep = "same" THEN kafka.epoch ELSE kafka.epoch + 1
       IN  /\ kafka' = [kafka EXCEPT !.epoch = epoch, !.kept = open, !.state = IF open THEN "Ongoing" ELSE "Empty"]
           /\ driver' = IF open /\ kafka.txn = driver[d].seen.txn
                        THEN [driver EXCEPT ![d].at = "abort kept", ![d].epoch = epoch]
                        ELSE [driver EXCEPT ![d].at = "look"]
    /\ UNCHANGED <<log, row, table, spark, net, backup, left, ledger>>

AbortKept(d) ==
    /\ driver[d].at = "abort kept"
    /\ LET fits == kafka.state = "Ongoing" /\ kafka.epoch = driver[d].epoch
       IN  /\ kafka' = IF fits THEN Ending("PrepareAbort") ELSE kafka
           /\ driver' = [driver EXCEPT ![d].at = IF fits THEN "init" ELSE "look", ![d].epoch = 0]
    /\ UNCHANGED <<log, row, table, spark, net, backup, left, ledger>>

(* InitProducerId(keepPreparedTxn=true): the prepared transaction, and the epoch that may end it. *)
KeepPrepared(d) ==
    /\ driver[d].at = "keep"
    /\ LET epoch == IF Keep = "bumps" THEN kafka.epoch + 1 ELSE kafka.epoch
       IN  IF kafka.state = "Ongoing" /\ kafka.txn = row.prepared
           THEN /\ kafka' = [kafka EXCEPT !.epoch = epoch, !.kept = TRUE]
                /\ driver' = [driver EXCEPT ![d].at = "settling", ![d].epoch = epoch]
                /\ net' = net \cup {[by |-> d, epoch |-> epoch]}
           ELSE Go(d, "look") /\ UNCHANGED <<kafka, net>>
    /\ UNCHANGED <<log, row, table, spark, backup, left, ledger>>

NoteSettled(d) ==
    /\ driver[d].at = "settled"
    /\ IF Mine(d) /\ row.status = "decided"
       THEN row' = [row EXCEPT !.status = "done"] /\ Go(d, "init")
       ELSE Stop(d) /\ UNCHANGED row
    /\ UNCHANGED <<kafka, log, table, spark, net, backup, left, ledger>>

(* It ends what no decision names, and only its epoch is used next: older ones may be known to drivers that died. *)
InitProducerId(d) ==
    /\ driver[d].at = "init"
    /\ kafka.state \notin {"PrepareCommit", "PrepareAbort"}                    \* CONCURRENT_TRANSACTIONS: tried again
    /\ LET open  == kafka.state = "Ongoing"
           epoch == IF open THEN kafka.epoch + 2 ELSE kafka.epoch + 1
           next  == driver[d].seen.state \in {"Ongoing", "PrepareCommit", "PrepareAbort"}
                    \/ epoch = driver[d].seen.epoch + 1
       IN  IF Mutant = "no closing InitProducerId" /\ ~open
           THEN /\ driver' = [driver EXCEPT ![d].at = "place", ![d].epoch = kafka.epoch, ![d].prepared = row.prepared,
                                            ![d].seen = Unseen]
                /\ UNCHANGED <<kafka, log, left>>
           ELSE /\ kafka' = [kafka EXCEPT !.state = "Empty", !.epoch = epoch, !.kept = FALSE]
                /\ log' = IF open THEN log \cup {[txn |-> kafka.txn, batch |-> kafka.batch, commit |-> FALSE, writes |-> 1]}
                        ELSE log
                /\ \/ UNCHANGED driver /\ Fault                                 \* no answer: asked again
                   \/ /\ IF next \/ Mine(d)                                    \* else somebody was there: look again
                         THEN driver' = [driver EXCEPT ![d].at = IF next THEN "place" ELSE "look", ![d].seen = Unseen,
                                                       ![d].epoch = epoch, ![d].prepared = row.prepared]
                         ELSE Stop(d)
                      /\ UNCHANGED left
    /\ UNCHANGED <<row, table, spark, net, backup, ledger>>

----------------------------------------------------------------------------
(* A driver: one batch. *)

Place(d) ==
    /\ driver[d].at = "place" /\ spark < Batches
    /\ LET last == IF row.batch = None THEN 0 ELSE row.batch + 1
           to(at, resend) == driver' = [driver EXCEPT ![d].at = at, ![d].batch = spark, ![d].resend = resend]
       IN  IF ~Mine(d) THEN Stop(d)
           ELSE IF row.prepared # driver[d].prepared THEN Go(d, "halted")      \* the database lost a decision
           ELSE IF row.status = "owed" /\ row.batch = spark THEN to("produce", Mutant # "an owed batch runs again")
           ELSE IF row.status # "owed" /\ row.batch # None /\ row.batch = spark
                THEN IF Mutant = "a replay runs again" THEN to("produce", FALSE) ELSE to("report", FALSE)
           ELSE IF row.status # "owed" /\ last = spark THEN to("produce", FALSE)
           ELSE Go(d, "halted")                                                \* a gap
    /\ UNCHANGED <<kafka, log, row, table, spark, net, backup, left, ledger>>

(* BEGIN, PRODUCE, PREPARE: all records are acknowledged, and invisible. *)
Produce(d) ==
    /\ driver[d].at = "produce"
    /\ ~(kafka.epoch = driver[d].epoch /\ kafka.state \in {"PrepareCommit", "PrepareAbort"})   \* tried again
    /\ LET mine == kafka.epoch = driver[d].epoch
       IN  IF mine /\ AtRest
           THEN /\ kafka' = [kafka EXCEPT !.state = "Ongoing", !.txn = kafka.epoch, !.batch = driver[d].batch,
                                          !.writes = 1]
                /\ IF Mutant = "EndTxn before COMMIT"
                   THEN net' = net \cup {[by |-> d, epoch |-> driver[d].epoch]} ELSE UNCHANGED net
                /\ Go(d, "decide")
           ELSE IF mine /\ kafka.state = "Ongoing"                             \* whoever has the epoch adds to it
           THEN kafka' = [kafka EXCEPT !.writes = 2] /\ Go(d, "decide") /\ UNCHANGED net
           ELSE IF Mutant = "a kept transaction takes records" /\ kafka.kept
           THEN kafka' = [kafka EXCEPT !.writes = 2] /\ Go(d, "claim") /\ UNCHANGED net
           ELSE Go(d, "claim") /\ UNCHANGED <<kafka, net>>                     \* fenced
    /\ UNCHANGED <<log, row, table, spark, backup, left, ledger>>

(* One database transaction: rows, and the state row last.  Its outcome may be unknown to the driver. *)
Decide(d) ==
    /\ driver[d].at = "decide"
    /\ LET mine == (Mine(d) \/ Mutant = "a superseded driver decides") /\ row.prepared = driver[d].prepared
           b    == driver[d].batch
       IN  \/ /\ mine
              /\ row' = [row EXCEPT !.status = "decided", !.batch = b,
                                      !.prepared = IF Mutant = "the row names another transaction"
                                                   THEN driver[d].epoch + 9 ELSE driver[d].epoch]
              /\ table' = IF driver[d].resend THEN table ELSE [table EXCEPT ![b] = @ + 1]
              /\ \/ driver' = [driver EXCEPT ![d].at = "end", ![d].prepared = driver[d].epoch] /\ UNCHANGED left
                 \/ driver' = [driver EXCEPT ![d].at = "claim", ![d].prepared = driver[d].epoch] /\ Fault
           \/ ~mine /\ Stop(d) /\ UNCHANGED <<row, table, left>>
           \/ Fault /\ Go(d, "claim") /\ UNCHANGED <<row, table>>              \* rolled back
    /\ UNCHANGED <<kafka, log, spark, net, backup, ledger>>

SendEndTxn(d) ==
    /\ driver[d].at = "end"
    /\ Go(d, "ending")
    /\ net' = net \cup {[by |-> d, epoch |-> driver[d].epoch]}
    /\ UNCHANGED <<kafka, log, row, table, spark, backup, left, ledger>>

(* No answer in time; the request may still arrive. *)
GiveUp(d) ==
    /\ driver[d].at \in {"ending", "settling"} /\ Fault
    /\ Go(d, "claim")
    /\ UNCHANGED <<kafka, log, row, table, spark, net, backup, ledger>>

Note(d) ==
    /\ driver[d].at = "ended"
    /\ IF Mine(d) /\ row.status = "decided" /\ row.prepared = driver[d].epoch
       THEN /\ row' = [row EXCEPT !.status = "done"]
            /\ driver' = [driver EXCEPT ![d].at = "report", ![d].epoch = @ + 1]
       ELSE Go(d, "claim") /\ UNCHANGED row
    /\ UNCHANGED <<kafka, log, table, spark, net, backup, left, ledger>>

(* The sink returns, and Spark writes its commit log. *)
Report(d) ==
    /\ driver[d].at = "report"
    /\ spark' = IF spark = driver[d].batch THEN spark + 1 ELSE spark
    /\ Go(d, IF spark' = Batches THEN "finished" ELSE "place")
    /\ UNCHANGED <<kafka, log, row, table, net, backup, left, ledger>>

----------------------------------------------------------------------------
(* People.  A backup is restored while no job runs. *)

TakeBackup ==
    /\ left.restores > 0 /\ backup # [row |-> row, table |-> table]
    /\ backup' = [row |-> row, table |-> table]
    /\ UNCHANGED <<kafka, log, row, table, spark, driver, net, left, ledger>>

Restore ==
    /\ left.restores > 0 /\ backup # [row |-> row, table |-> table] /\ Running = {}
    /\ left' = [left EXCEPT !.restores = @ - 1]
    /\ row' = backup.row /\ table' = backup.table
    /\ UNCHANGED <<kafka, log, spark, driver, net, backup, ledger>>

(* spark-2pc recover --drop: Kafka goes without an owed batch. *)
Drop ==
    /\ row.status = "owed" /\ left.drops > 0
    /\ left' = [left EXCEPT !.drops = @ - 1]
    /\ row' = [row EXCEPT !.status = "done", !.claim = "person"]
    /\ ledger' = ledger \cup {row.batch}
    /\ UNCHANGED <<kafka, log, table, spark, driver, net, backup>>

(* spark-2pc recover --accept-loss, after a halt: the row moves past what only Kafka has; the table stays as it is. *)
AcceptLoss ==
    /\ \E d \in Drivers : driver[d].at = "halted"
    /\ AtRest
    /\ IF Behind
       THEN LET last == CHOOSE m \in log : m.commit /\ \A n \in log : n.commit => n.txn <= m.txn
            IN  /\ row' = [row EXCEPT !.status = "done", !.batch = last.batch, !.prepared = last.txn,
                                      !.claim = "person"]
                /\ ledger' = ledger \cup {b \in Ids : table[b] # Committed(b)}
       ELSE row' = [row EXCEPT !.claim = "person"] /\ UNCHANGED ledger
    /\ driver' = [d \in Drivers |-> IF driver[d].at = "halted" THEN Off ELSE driver[d]]
    /\ UNCHANGED <<kafka, log, table, spark, net, backup, left>>

----------------------------------------------------------------------------

Steps(d) == \/ Claim(d) \/ Look(d) \/ Resolve(d) \/ AbortOpen(d) \/ TakeOver(d) \/ AbortKept(d)
            \/ KeepPrepared(d) \/ NoteSettled(d) \/ InitProducerId(d)
            \/ Place(d) \/ Produce(d) \/ Decide(d) \/ SendEndTxn(d) \/ Note(d) \/ Report(d)

Next == \/ WriteMarkers \/ TimeOut \/ ReceiveEndTxn \/ LateKeep
        \/ \E d \in Drivers : Start(d) \/ Crash(d) \/ GiveUp(d) \/ Steps(d)
        \/ TakeBackup \/ Restore \/ Drop \/ AcceptLoss

Spec == Init /\ [][Next]_vars

(* Both sides answer, and a job that ended is started again. *)
Fairness == /\ WF_vars(WriteMarkers) /\ WF_vars(ReceiveEndTxn)
            /\ WF_vars(\E d \in Drivers : Running = {} /\ Start(d))
            /\ \A d \in Drivers : WF_vars(Steps(d))

FairSpec == Spec /\ Fairness

----------------------------------------------------------------------------
(* Properties. *)

Interchangeable == Permutations(Drivers)

Restored == left.restores < Restores
NoneTwice == \A b \in Ids : Committed(b) <= 1 /\ (table[b] <= 1)

(* What Spark will not give again is on both sides, or on its way there, or a person has accepted that it is not. *)
NoneLost == \A b \in Ids : b < spark =>
    /\ table[b] = 1 \/ b \in ledger \/ Restored
    /\ Committed(b) = 1 \/ b \in ledger \/ Restored \/ (kafka.state = "PrepareCommit" /\ kafka.batch = b)

EqualAtRest ==
    (kafka.state # "Ongoing" /\ AtRest /\ row.status = "done" /\ ~Halted /\ ~Behind
        /\ \E d \in Drivers : driver[d].at \in {"place", "finished"} /\ Mine(d) /\ driver[d].prepared = row.prepared)
    => \A b \in Ids : table[b] = Committed(b) \/ b \in ledger

(* A decided transaction is open, or its outcome is in the log. *)
WayOn == (row.status = "decided" /\ ~Restored) =>
    \/ kafka.txn = row.prepared /\ kafka.state \in {"Ongoing", "PrepareCommit", "PrepareAbort"}
    \/ MarkerOf(row.prepared) # {}

NoNeedlessHalt == Halted => Restored

KeptTakesNoRecords == [][kafka.kept /\ kafka'.kept => kafka'.writes = kafka.writes]_vars

Settles == (row.status = "decided") ~> (row.status # "decided" \/ Halted)
Finishes == <>(spark = Batches \/ Halted)

=============================================================================
