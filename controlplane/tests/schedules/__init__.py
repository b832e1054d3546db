"""The guarantees between the parts, tested under generated schedules.
`scheduler.py` runs one actor at a time, from seam to seam; `seams.py` makes every Redis command and every database
transaction of the real code a seam. Hypothesis state machines (`publication_machine.py`, `jobs_machine.py`,
`lease_machine.py`) choose who continues and what is delayed, repeated, interrupted or killed, and check the guarantees
after each step: no reader goes back to an older state (`timeline.py`), nothing is live that the rules did not allow
when it went live (`allowed.py`), one control worker leads at a time and someone does, and in the end database, Redis
and routers agree. `mutations.py` removes fixes, and a schedule must detect that. CONTRIBUTING.md says how to replay a
failed schedule.
"""
