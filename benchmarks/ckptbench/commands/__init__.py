"""What can be called: run (job files and verbs), goals (burst, restore), roofline, gpu, growth,
repair, compare, plan, agent. Each has `main(argv) -> exit code`.
"""
