from controlplane.systems.system import Figure
NOTES = ()
def figures() -> tuple[Figure, ...]:
    return ()
