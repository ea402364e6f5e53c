from refmoe.mutation.proofs.flow import Act, SideBySide
def stored_by_others(side, one, other): return False
