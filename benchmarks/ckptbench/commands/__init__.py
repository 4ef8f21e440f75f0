"""What can be called: run (job files and verbs), goals (burst, restore), offload, roofline,
growth, repair, compare, plan, agent. Each has `main(argv) -> exit code`.
"""
