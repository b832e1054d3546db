"""The promises between the parts, tried under schedules that a machine draws.

`scheduler.py` lets one actor run at a time, from seam to seam; `seams.py` makes every Redis command and every database
transaction of the real code a seam; hypothesis state machines (`publication_machine.py`, `jobs_machine.py`,
`lease_machine.py`) draw who continues and what is delayed, doubled, cut or killed, and look after each step whether the
promises hold: nobody goes back to what is older (`timeline.py`), nothing is live that the rules did not allow when it
went live (`allowed.py`), one control worker leads at a time and someone does,
and at rest database, Redis and routers say the same. `mutations.py` takes mends
out again, and a schedule must find that. How to replay a schedule that failed: CONTRIBUTING.md.
"""
