"""`python -m controlplane.web`: the module path of the web process for units, images and charts."""

from controlplane.doors.web.__main__ import main

if __name__ == "__main__":
    main()
