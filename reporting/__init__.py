"""What `hp-report` shows: timelines, memory and communication of a Program, simulated by a cost model or measured.

Everything here works on plain data: the Program's format, the costs, and the profiles that a run leaves behind.
"""
