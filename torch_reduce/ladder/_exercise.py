def main(options): return 0
