"""Pipeline parallelism: stages, schedules, and one function per pipeline rank."""
