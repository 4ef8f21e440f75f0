"""Small documents of a checkpoint that targets keep beside its columns, and the file of one."""
